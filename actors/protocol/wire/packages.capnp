@0xa6c0b6d1f2e97c43;

# Folders sent to hosts that lack them (packages.h has the same as plain values).

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("shoal::actors::wire");

struct PackagePart {
  name @0 :Text;    # SHA-256 of the package, in hexadecimal
  total @1 :UInt64; # bytes of the package
  offset @2 :UInt64;
  data @3 :Data;
}

struct HasPackage {
  whole @0 :Bool;
}
