// The names of CUDA that NCCL's headers need.
#pragma once

#include <stddef.h>

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
#define __CUDA_BF16_TYPES_EXIST__ 1
