@0xd4b1f60e83a7c259;

# Values that do not fit into a call, or precede its answer (actors/value/call.h).

using Cxx = import "/capnp/c++.capnp";
using Control = import "/actors/protocol/wire/control.capnp";
$Cxx.namespace("shoal::actors::wire");

struct Arguments {
  actor @0 :UInt64;
  first @1 :UInt64;
  values @2 :List(Control.Value);
}

struct Item {
  stream @0 :UInt64;
  index @1 :UInt64;
  value @2 :Control.Value;
}
