// elements.h - operations that work element by element: their sizes, and results in the place of an operand.
#ifndef ELEMENTS_H
#define ELEMENTS_H

#include "cases.h"

// n
static const Shape ELEMENT_SHAPES[] = {{{1}},  {{2}},  {{3}},    {{7}},    {{8}},    {{15}},   {{16}},
                                       {{17}}, {{33}}, {{1023}}, {{1024}}, {{1025}}, {{2049}}, {{5000}}, {{0}}};

// An operand of n elements, in whose place the result may go.
static inline Buffer *given_or_changed(Run *run, const char *name, bool is_result, size_t n) {
    return made(run, name, is_result ? CHANGED : GIVEN, run->dtype, n, is_result);
}

#endif
