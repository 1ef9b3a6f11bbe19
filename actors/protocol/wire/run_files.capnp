@0xb1d94c7e53a20f68;

# Parts of a run's folder, from a further host to the first one (run_files.h has the same as plain values).

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("shoal::actors::wire");

struct RunFiles {
  sender @0 :UInt64;
  parts @1 :List(RunFilePart);
}

struct RunFilePart {
  process @0 :Text;
  file @1 :Text;
  offset @2 :UInt64;
  size @3 :UInt64;
  removed @4 :Bool;
}
