// tokens.h - tokens as an operand.
#ifndef TOKENS_H
#define TOKENS_H

#include "cases.h"

// Tokens from 0 to V-1, both of which occur.
static inline Buffer *given_tokens(Run *run, size_t n, size_t V) {
    Buffer *tokens = given(run, "tokens", IN_INT32, n, 0);
    for (size_t i = 0; i < n; i++) tokens->given[i] = (double)(random_bits(5, 0, i) % V);
    tokens->given[n / 2] = (double)(V - 1);
    tokens->given[0] = 0;
    return tokens;
}

#endif
