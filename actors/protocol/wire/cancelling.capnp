@0xb7f3d02c4e9a6815;

# The request to cancel another process's call (cancelling.h has the same as a plain value).

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("shoal::actors::wire");

struct CancelResult {
  job @0 :UInt64;
  object @1 :UInt64;
  home @2 :UInt64;
  owner @3 :UInt64;
  recursive @4 :Bool;
  force @5 :Bool;
}
