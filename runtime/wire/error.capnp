@0xe1a4c6d0b7a93f15;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("shoal::runtime::wire");

# An Error (runtime/core/error.h) on its way to another process.
struct ErrorMessage {
  code @0 :UInt16;  # numbers beyond those known here are read as Internal
  reason @1 :Text;
  message @2 :Text;
  hint @3 :Text;
  context @4 :List(Text);
  causeReason @5 :Text;  # absent from releases that had no causes
  causeBytes @6 :UInt32;  # the end of `message` that is the cause's message
}
