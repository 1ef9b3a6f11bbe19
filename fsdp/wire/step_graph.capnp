@0xd58e7a90c2b41f36;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("shoal::fsdp::wire");

struct Edge {
  from @0 :Int32;
  kind @1 :UInt16;
}

struct Node {
  op @0 :UInt16;
  unit @1 :Int32;
  part @2 :Int32;
  backward @3 :Bool;
  after @4 :List(Edge);
  micro @5 :Int32;
  also @6 :List(Int32);
  value @7 :Float64;
}

struct StepGraph {
  units @0 :List(Text);
  nodes @1 :List(Node);
}
