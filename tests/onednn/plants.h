// plants.h - what is planted in plants.c: the name, and what must be said of it. A "wrong result" is one that the
// program itself finds, with exit status 2, since the library says nothing either.
#ifndef PLANTS_H
#define PLANTS_H

#define PLANTS(PLANT)                                                                                    \
    PLANT(destroyed_memory, "dnnl_memory_set_data_handle: a memory that was destroyed")                  \
    PLANT(destroyed_primitive, "dnnl_primitive_execute: a primitive that was destroyed")                 \
    PLANT(double_destroy, "dnnl_memory_destroy: a memory that was destroyed")                            \
    PLANT(wrong_handle, "a primitive was expected, and this is a primitive descriptor")                  \
    PLANT(no_handle, "a memory was expected, and this is no handle")                                     \
    PLANT(engine_in_use, "an engine that is still in use (by what was made on it)")                      \
    PLANT(other_shape, "source of a product has another description")                                    \
    PLANT(other_layout, "weights of a product has another description")                                  \
    PLANT(other_type, "destination of a product has another description")                                \
    PLANT(small_scratchpad, "scratchpad of a product has another description")                           \
    PLANT(no_destination, "is not given its destination")                                                \
    PLANT(no_bias, "is not given its bias")                                                              \
    PLANT(no_scratchpad, "is not given its scratchpad")                                                  \
    PLANT(twice, "is given its source twice")                                                            \
    PLANT(unknown_argument, "which it does not have")                                                    \
    PLANT(null_source, "the source of a product|is at NULL")                                             \
    PLANT(null_scratchpad, "the scratchpad of a product|is at NULL")                                     \
    PLANT(misaligned, "the destination of a product is not aligned")                                     \
    PLANT(overlap_source, "the destination and the source of a product overlap")                         \
    PLANT(overlap_weights, "the destination and the weights of a product overlap")                       \
    PLANT(overlap_scratchpad, "the destination and the scratchpad of a product overlap")                 \
    PLANT(overlap_scratchpad_source, "the scratchpad and the source of a product overlap")               \
    PLANT(scratchpad_first, "byte 0 of the scratchpad")                                                  \
    PLANT(scratchpad_middle, "was written while a product used it")                                      \
    PLANT(scratchpad_last, "was written while a product used it")                                        \
    PLANT(scratchpad_shared, "was written while a product used it")                                      \
    PLANT(library_scratchpad, "a scratchpad of the library's own would be allocated at every call")      \
    PLANT(library_memory, "a memory of the library's own")                                               \
    PLANT(unwaited_stream, "a stream with a product that was not waited for")                            \
    PLANT(unwaited_primitive, "a primitive that is still in use (by a product that was not waited for)") \
    PLANT(unwaited_result, "wrong result")                                                               \
    PLANT(small_team, "wrong result")

#endif
