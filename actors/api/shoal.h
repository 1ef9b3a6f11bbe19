// Shoal for C++ users: actors, typed calls, futures, meshes. Read in this order: methods.h, handle.h, future.h, futures.h,
// running.h, generator.h, stream.h, context.h, main.h.
#pragma once

#include "actors/api/context.h"
#include "actors/api/future.h"
#include "actors/api/futures.h"
#include "actors/api/generator.h"
#include "actors/api/handle.h"
#include "actors/api/main.h"
#include "actors/api/methods.h"
#include "actors/api/running.h"
#include "actors/api/stream.h"
#include "runtime/core/bytes.h"
#include "runtime/core/result.h"
