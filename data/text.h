// text.h - bytes that come piece by piece, written as text that any terminal can show.
//
// A piece need not end with a whole character, so a TextOut keeps bytes until their character is whole.
//
// Invariant: whatever bytes come, what is written is valid UTF-8 without control characters other than newline and tab:
// anything else becomes U+FFFD, so an untrained model can't send escape sequences to a terminal.
#ifndef TEXT_H
#define TEXT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct TextOut {
    FILE *file;
    unsigned char pending[4];  // the first bytes of a character that isn't whole yet
    int n_pending;
} TextOut;

// Text that goes to `file`, with no character begun.
static inline void text_open(TextOut *out, FILE *file) {
    memset(out, 0, sizeof(*out));
    out->file = file;
}

// Bytes of the character that starts with this one; 0 if none does (0xc0 and 0xc1 would be overlong).
static inline int text_length(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead >= 0xc2 && lead <= 0xdf) return 2;
    if (lead >= 0xe0 && lead <= 0xef) return 3;
    return lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
}

// Whether `byte` may be at `position` (1, 2, 3) of a character that starts with `lead`.
static inline bool text_continues(unsigned char lead, int position, unsigned char byte) {
    unsigned char low = 0x80, high = 0xbf;
    if (position == 1 && lead == 0xe0) low = 0xa0;   // below: overlong
    if (position == 1 && lead == 0xed) high = 0x9f;  // above: surrogates
    if (position == 1 && lead == 0xf0) low = 0x90;   // below: overlong
    if (position == 1 && lead == 0xf4) high = 0x8f;  // above: beyond U+10FFFF
    return byte >= low && byte <= high;
}

// U+FFFD in place of what is pending.
static inline void text_put_replacement(TextOut *out) {
    fwrite("\xef\xbf\xbd", 1, 3, out->file);
    out->n_pending = 0;
}

// The next byte of the text.
static inline void text_put_byte(TextOut *out, unsigned char byte) {
    if (out->n_pending > 0 && !text_continues(out->pending[0], out->n_pending, byte)) text_put_replacement(out);
    if (out->n_pending == 0 && text_length(byte) == 0) {
        text_put_replacement(out);
        return;
    }
    out->pending[out->n_pending & 3] = byte;  // the mask only tells compilers what text_length() ensures
    out->n_pending++;
    const unsigned char *c = out->pending;
    if (out->n_pending < text_length(c[0])) return;
    bool is_control = (c[0] < 0x20 && c[0] != '\n' && c[0] != '\t') || c[0] == 0x7f;
    if (is_control || (c[0] == 0xc2 && c[1] < 0xa0)) {  // U+0080 ... U+009F are controls as well
        text_put_replacement(out);
        return;
    }
    fwrite(c, 1, (size_t)out->n_pending, out->file);
    out->n_pending = 0;
}

// The next n bytes of the text.
static inline void text_put(TextOut *out, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) text_put_byte(out, (unsigned char)bytes[i]);
}

// Ends the text: half a character becomes U+FFFD, and everything is handed to the system. False if any write failed.
// (To show text while it grows, fflush(out->file) instead.)
static inline bool text_flush(TextOut *out) {
    if (out->n_pending > 0) text_put_replacement(out);
    return fflush(out->file) == 0 && !ferror(out->file);
}

#endif
