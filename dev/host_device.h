// host_device.h - a function of the host and, in CUDA, of the device as well: the same text, the same bits.
//
// Such functions stand in loops that vectorise only without a call, and a compiler's own limits on inlining depend on
// the size of the whole program; so inlining is asked for.
#ifndef HOST_DEVICE_H
#define HOST_DEVICE_H

#if defined(__GNUC__)
#define HOST_DEVICE_INLINE static inline __attribute__((always_inline))
#else
#define HOST_DEVICE_INLINE static inline
#endif
#ifdef __CUDACC__
#define HOST_DEVICE HOST_DEVICE_INLINE __host__ __device__
#else
#define HOST_DEVICE HOST_DEVICE_INLINE
#endif

#endif
