// Shoal for C++ users: actors, typed calls, futures, meshes. Read in this order: methods.h, handle.h, future.h, futures.h,
// running.h, generator.h, stream.h, context.h, main.h.
#pragma once

#include "actors/api/codec/methods.h"
#include "actors/api/context/context.h"
#include "actors/api/context/future.h"
#include "actors/api/context/futures.h"
#include "actors/api/context/generator.h"
#include "actors/api/context/handle.h"
#include "actors/api/context/running.h"
#include "actors/api/context/stream.h"
#include "actors/api/main.h"
#include "actors/api/record/step_record.h"
#include "runtime/core/bytes.h"
#include "runtime/core/result.h"
