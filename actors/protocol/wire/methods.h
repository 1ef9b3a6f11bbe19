// Every method of the control protocol: those of the headers below, and those of actors' processes (actors/value/call.h).
//
// Two methods with the same number do not compile here, since Declared<> would be specialized twice for it. method_table.h decodes requests
// and encodes replies by these declarations.
#pragma once

#include "actors/protocol/wire/cancelling.h"
#include "actors/protocol/wire/head_messages.h"
#include "actors/protocol/wire/inspection.h"
#include "actors/protocol/wire/joining.h"
#include "actors/protocol/wire/log_files.h"
#include "actors/protocol/wire/message.h"
#include "actors/protocol/wire/node_messages.h"
#include "actors/protocol/wire/packages.h"
#include "actors/protocol/wire/run_files.h"
#include "actors/protocol/wire/task_log.h"

namespace shoal::actors {

struct Arguments;
struct Call;
struct CancelCall;
struct Item;
class Value;

// Sent to an actor's process.
SHOAL_METHOD(kCall, 100, Signature<Call, Value>);
SHOAL_METHOD(kCancelCall, 101, Signature<CancelCall>);  // a notice: cancel a call that came over this connection
// A notice with values of arguments that do not fit into their call, which follows over the same connection as kCallOfArguments. `first`:
// the number of values sent before these. If it is 0, the receiver discards the values that it has.
SHOAL_METHOD(kArguments, 122, Signature<Arguments>);
SHOAL_METHOD(kCallOfArguments, 123, Signature<Call, Value>);

// Notices from an actor's process to its callers.
SHOAL_METHOD(kItem, 124, Signature<Item>);  // an item that a call yields; it precedes the call's answer on the same connection
// A notice without a body to each caller once the actor is made, before any other message. A caller that has not received it may assume
// that none of its calls has begun.
SHOAL_METHOD(kConstructed, 125, Signature<Empty>);

}  // namespace shoal::actors
