// test_tokenizer.c - tokenizer.h: whatever bytes come, valid UTF-8 without control characters goes out; tokenizer files
// of llm.c, damaged ones, and prompts that can't be made.
#include "token_helpers.h"

#include "../data/tokenizer.h"
#include "../data/tokenizer.h"

// ---------------------------------------------------------------------------------------------------------------
// Text

#define REPLACED "\xef\xbf\xbd"

// What comes out for these bytes (to be freed), with the end of the text after them.
static char *shown(const char *bytes, size_t n, size_t *n_shown) {
    char *text = NULL;
    FILE *file = open_memstream(&text, n_shown);
    TextOut out;
    text_open(&out, file);
    text_put(&out, bytes, n);
    assert_true(text_flush(&out));
    fclose(file);
    return text;
}

static void test_utf8(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *shown;
    } cases[] = {
        {"plain text\n\tand tab", "plain text\n\tand tab"},
        {"", ""},
        {"\xc3\xa9\xe6\xad\xa3\xf0\x9f\x98\x80", "\xc3\xa9\xe6\xad\xa3\xf0\x9f\x98\x80"},
        {"\xe6\xad", REPLACED},                            // ends within a character
        {"\xe6\xad" "a", REPLACED "a"},                    // cut off by another
        {"\xe6\xad\xe6\xad\xa3", REPLACED "\xe6\xad\xa3"},  // cut off by the beginning of another
        {"\xf0\x9f\x98", REPLACED},
        {"\x80" "a\xbf", REPLACED "a" REPLACED},           // continuations of nothing
        {"\xc0\xaf", REPLACED REPLACED},                   // overlong
        {"\xc1\xbf", REPLACED REPLACED},
        {"\xe0\x80\xaf", REPLACED REPLACED REPLACED},
        {"\xe0\x9f\xbf", REPLACED REPLACED REPLACED},
        {"\xf0\x8f\xbf\xbf", REPLACED REPLACED REPLACED REPLACED},
        {"\xed\xa0\x80", REPLACED REPLACED REPLACED},      // surrogates
        {"\xed\xbf\xbf", REPLACED REPLACED REPLACED},
        {"\xf4\x90\x80\x80", REPLACED REPLACED REPLACED REPLACED},  // U+110000
        {"\xf5\x80\x80\x80", REPLACED REPLACED REPLACED REPLACED},
        {"\xff\xfe", REPLACED REPLACED},
        {"\x1b[31mred\x1b]0;title\x07", REPLACED "[31mred" REPLACED "]0;title" REPLACED},
        {"a\r\b\x7f\x0c\x01z", "a" REPLACED REPLACED REPLACED REPLACED REPLACED "z"},
        {"\xc2\x9b" "31m", REPLACED "31m"},                // ESC [ in one character
        {"\xc2\x80\xc2\x9f\xc2\xa0", REPLACED REPLACED "\xc2\xa0"},
        {"\xf4\x8f\xbf\xbf\xef\xbf\xbf", "\xf4\x8f\xbf\xbf\xef\xbf\xbf"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t n;
        char *text = shown(cases[i].bytes, strlen(cases[i].bytes), &n);
        assert_string_equal(text, cases[i].shown);
        free(text);
    }
    size_t n;
    char *text = shown("a\0b", 3, &n);
    assert_string_equal(text, "a" REPLACED "b");
    free(text);
}

// Every number up to 2^21 - 1 in the form of a character of the shortest length: what is one comes out unchanged.
static void test_every_character(void **state) {
    (void)state;
    char *text = NULL;
    size_t n;
    FILE *file = open_memstream(&text, &n);
    TextOut out;
    text_open(&out, file);
    size_t expected = 0, n_wrong = 0;
    for (uint32_t c = 0; c < 0x200000; c++) {
        char bytes[4];
        size_t length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        for (size_t i = length; i-- > 1;) bytes[i] = (char)(0x80 | ((c >> 6 * (length - 1 - i)) & 0x3f));
        const unsigned char lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
        bytes[0] = (char)(lead[length] | c >> 6 * (length - 1));
        bool is_control = (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0);
        bool is_character = (c < 0xd800 || c > 0xdfff) && c <= 0x10ffff;
        rewind(file);
        text_put(&out, bytes, length);
        fflush(file);
        if (is_character && !is_control) {
            n_wrong += n != length || memcmp(text, bytes, length) != 0;
            expected++;
        } else {
            size_t n_replaced = is_character ? 1 : length;
            n_wrong += n != 3 * n_replaced || memcmp(text, REPLACED REPLACED REPLACED REPLACED, n) != 0;
        }
        n_wrong += out.n_pending != 0;
    }
    fclose(file);
    free(text);
    assert_int_equal(n_wrong, 0);
    assert_int_equal(expected, 0x110000 - 0x800 - 65 + 2);
}

static void test_write_error(void **state) {
    (void)state;
    TextOut out;
    text_open(&out, fopen("/dev/full", "w"));
    assert_non_null(out.file);
    text_put(&out, "lost", 4);
    assert_false(text_flush(&out));
    fclose(out.file);
    text_open(&out, fopen("/dev/full", "w"));
    assert_non_null(out.file);
    setvbuf(out.file, NULL, _IONBF, 0);
    text_put(&out, "lost", 4);  // fails here, so flushing has nothing to do
    assert_false(text_flush(&out));
    fclose(out.file);
}

// ---------------------------------------------------------------------------------------------------------------
// Tokenizers

static char *shown_ids(const Tokenizer *tokenizer, const int *ids, size_t n) {
    char *text = NULL;
    size_t n_shown;
    FILE *file = open_memstream(&text, &n_shown);
    TextOut out;
    text_open(&out, file);
    for (size_t i = 0; i < n; i++) tokenizer_put(tokenizer, &out, ids[i]);
    assert_true(text_flush(&out));
    fclose(file);
    return text;
}

static void test_byte_tokens(void **state) {
    (void)state;
    Tokenizer tokenizer;
    tokenizer_open(&tokenizer, NULL, 257);
    assert_int_equal(tokenizer_end_of_text(&tokenizer), 256);
    int32_t ids[16];
    assert_int_equal(tokenizer_encode(&tokenizer, "a\xe6\xad\xff", ids, 16), 4);
    const int32_t right[4] = {'a', 0xe6, 0xad, 0xff};
    assert_memory_equal(ids, right, sizeof(right));
    assert_int_equal(tokenizer_encode(&tokenizer, "", ids, 0), 0);
    assert_int_equal(tokenizer_encode(&tokenizer, "sixteen tokens !", ids, 16), 16);
    const int out[12] = {'H', 0xc3, 0xa9, 0xe6, 0xad, 256, 'x', 0x1b, '\n', 257, -1, 0xc3};
    char *text = shown_ids(&tokenizer, out, 12);
    assert_string_equal(text, "H\xc3\xa9" REPLACED "<|endoftext|>x" REPLACED "\n<257><-1>" REPLACED);
    free(text);
    tokenizer_close(&tokenizer);
}

static void test_no_tokenizer(void **state) {
    (void)state;
    Tokenizer tokenizer;
    tokenizer_open(&tokenizer, NULL, 50257);
    assert_int_equal(tokenizer_end_of_text(&tokenizer), 50256);
    const int ids[4] = {15496, 11, 50256, INT32_MIN};
    char *text = shown_ids(&tokenizer, ids, 4);
    assert_string_equal(text, "<15496><11><50256><-2147483648>");
    free(text);
    tokenizer_close(&tokenizer);
    tokenizer_open(&tokenizer, NULL, 67);
    assert_int_equal(tokenizer_end_of_text(&tokenizer), -1);
    tokenizer_close(&tokenizer);
}

// A tokenizer file of five tokens, one with half a character and one of 255 bytes.
static size_t make_tokenizer(unsigned char *bytes) {
    put_header(bytes, 20240328, 2, 5, 4);
    size_t n = 1024;
    const char *tokens[5] = {"Hello", "\xe6\xad", "\xa3\x1b[0m", NULL, "<|endoftext|>"};
    for (int i = 0; i < 5; i++) {
        size_t length = tokens[i] != NULL ? strlen(tokens[i]) : 255;
        bytes[n++] = (unsigned char)length;
        if (tokens[i] != NULL) memcpy(bytes + n, tokens[i], length);
        else memset(bytes + n, 'z', length);
        n += length;
    }
    return n;
}

typedef struct {
    const char *path;
    size_t vocabulary;
} TokenizerOpening;

static void open_tokenizer(void *argument) {
    const TokenizerOpening *opening = argument;
    Tokenizer tokenizer;
    tokenizer_open(&tokenizer, opening->path, opening->vocabulary);
    tokenizer_close(&tokenizer);
}

static void test_tokenizer_file(void **state) {
    (void)state;
    unsigned char bytes[2048];
    size_t n = make_tokenizer(bytes);
    const char *path = in_directory(directory, "tokenizer.bin");
    write_file(path, bytes, n);
    Tokenizer tokenizer;
    tokenizer_open(&tokenizer, path, 5);
    assert_int_equal(tokenizer_end_of_text(&tokenizer), 4);
    const int ids[8] = {0, 1, 2, 4, 1, 0, 5, -1};
    char *text = shown_ids(&tokenizer, ids, 8);
    assert_string_equal(text, "Hello\xe6\xad\xa3" REPLACED "[0m<|endoftext|>" REPLACED "Hello<5><-1>");
    free(text);
    const int longest = 3;
    text = shown_ids(&tokenizer, &longest, 1);
    assert_int_equal(strlen(text), 255);
    free(text);
    tokenizer_close(&tokenizer);
}

static void test_damaged_tokenizers(void **state) {
    (void)state;
    unsigned char bytes[2048];
    size_t n = make_tokenizer(bytes);
    const char *path = in_directory(directory, "damaged_tokenizer.bin");
    TokenizerOpening opening = {path, 5};
    write_file(path, bytes, n);
    expect_exit(open_tokenizer, &opening, 0, "");
    for (size_t cut = 0; cut < n; cut += cut < 1020 ? 4 : 1) {
        write_file(path, bytes, cut);
        expect_die(open_tokenizer, &opening, "damaged_tokenizer.bin|cut short");
    }
    bytes[n] = 0;
    write_file(path, bytes, n + 1);
    expect_die(open_tokenizer, &opening, "damaged_tokenizer.bin|1 bytes after the last token");
    bytes[1024 + 6] = 0;  // the length of token 1
    write_file(path, bytes, n);
    expect_die(open_tokenizer, &opening, "damaged_tokenizer.bin|token 1 is empty");

    const struct {
        uint32_t magic, version, vocabulary, end_of_text;
        const char *words;
    } faults[7] = {
        {20240520, 2, 5, 4, "no tokenizer file|20240520"},
        {20240328, 1, 5, 4, "version 1|only 2|llm.c"},
        {20240328, 3, 5, 4, "version 3"},
        {20240328, 2, 6, 4, "6 tokens|vocabulary is 5"},
        {20240328, 2, 50257, 50256, "50257 tokens|vocabulary is 5"},
        {20240328, 2, 5, 5, "token 5 ends|only 5"},
        {20240328, 2, 5, 0xffffffffu, "4294967295"},
    };
    for (int i = 0; i < 7; i++) {
        make_tokenizer(bytes);
        put_header(bytes, faults[i].magic, faults[i].version, faults[i].vocabulary, faults[i].end_of_text);
        write_file(path, bytes, n);
        expect_die(open_tokenizer, &opening, faults[i].words);
    }
    opening.path = directory;
    expect_die(open_tokenizer, &opening, "not a regular file");
    opening.path = in_directory(directory, "missing.bin");
    expect_die(open_tokenizer, &opening, "missing.bin|No such file");
}

static void encode_for(void *argument) {
    const TokenizerOpening *opening = argument;
    Tokenizer tokenizer;
    tokenizer_open(&tokenizer, opening->path, opening->vocabulary);
    int32_t ids[3];
    tokenizer_encode(&tokenizer, "four", ids, 3);
}

static void test_unsuitable_prompts(void **state) {
    (void)state;
    TokenizerOpening opening = {NULL, 257};
    expect_die(encode_for, &opening, "prompt has 4 tokens|3");
    opening.vocabulary = 50257;
    expect_die(encode_for, &opening, "prompt needs byte tokens|257|50257");
    unsigned char bytes[2048];
    opening.path = in_directory(directory, "prompt_tokenizer.bin");
    write_file(opening.path, bytes, make_tokenizer(bytes));
    opening.vocabulary = 5;
    expect_die(encode_for, &opening, "prompt needs byte tokens|vocabulary is 5");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_every_character),
        cmocka_unit_test(test_write_error),
        cmocka_unit_test(test_byte_tokens),
        cmocka_unit_test(test_no_tokenizer),
        cmocka_unit_test(test_tokenizer_file),
        cmocka_unit_test(test_damaged_tokenizers),
        cmocka_unit_test(test_unsuitable_prompts),
    };
    return cmocka_run_group_tests(tests, open_directory, close_directory);
}
