// sample.h - text from a model: the next token from the logits of all, and what is shown of it.
//
// Draws depend on (seed, step, position) alone, and nothing of training depends on them.
#ifndef SAMPLE_H
#define SAMPLE_H

#include <math.h>

#include "../data/tokenizer.h"
#include "random.h"

// Draws from softmax(logits / temperature); temperature 0 takes the largest. Padding has no chance.
static inline int sample_token(const float *logits, size_t V, double temperature, double uniform) {
    size_t best = 0;
    for (size_t v = 1; v < V; v++) {
        if (logits[v] > logits[best]) best = v;
    }
    if (temperature <= 0.0) return (int)best;
    double sum = 0.0, below = 0.0;
    for (size_t v = 0; v < V; v++) sum += exp((double)(logits[v] - logits[best]) / temperature);
    for (size_t v = 0; v < V; v++) {
        below += exp((double)(logits[v] - logits[best]) / temperature);
        if (below > uniform * sum) return (int)v;
    }
    return (int)best;
}

// The random number in [0, 1) for the token at a position of the sample after a step.
static inline double sample_uniform(uint64_t seed, int64_t step, size_t position) {
    return random_uniform(seed, 3 + (uint64_t)step, position);
}

// What is shown of a sample, token by token; of a rehearsal (tokenizer NULL) nothing.
typedef struct {
    const Tokenizer *tokenizer;
    TextOut out;
} SampleText;

static inline void sample_show(SampleText *text, int id) {
    if (!text->tokenizer) return;
    tokenizer_put(text->tokenizer, &text->out, id);
    fflush(stdout);
}

// Says that a sample begins, and shows its prompt (n_prompt), without the end of a text before it.
static inline void sample_begin(SampleText *text, const Tokenizer *tokenizer, int64_t step, const int32_t *prompt,
                                size_t n_prompt) {
    text->tokenizer = tokenizer;
    if (!tokenizer) return;
    printf("--- sample after step %lld\n", (long long)step);
    text_open(&text->out, stdout);
    const size_t first = prompt[0] == tokenizer_end_of_text(tokenizer);
    for (size_t i = first; i < n_prompt; i++) tokenizer_put(tokenizer, &text->out, prompt[i]);
}

static inline void sample_end(SampleText *text) {
    if (!text->tokenizer) return;
    text_flush(&text->out);
    printf("\n---\n");
}

#endif
