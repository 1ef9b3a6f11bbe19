@0xe5b07c1d92f84a36;

# Answers of nodes and their processes to inspection (inspection.h has the same as plain values).

using Cxx = import "/capnp/c++.capnp";
using import "/runtime/wire/error.capnp".ErrorMessage;
$Cxx.namespace("shoal::actors::wire");

struct Inspect {
  what @0 :UInt16;  # 0 objects, 1 tasks, 2 runtime environments, 3 metrics
}

struct TaskReport {
  number @0 :UInt64;
  caller @1 :UInt64;
  actor @2 :UInt64;
  method @3 :Text;
  function @4 :Text;  # a remote function's name
  state @5 :UInt16;
  startUnixUs @6 :Int64;
  endUnixUs @7 :Int64;
  error @8 :Text;     # the kind of failure
}

struct ObjectReport {
  job @0 :UInt64;
  id @1 :UInt64;
  bytes @2 :UInt64;
  state @3 :UInt16;
  spilled @4 :Bool;
  contained @5 :UInt32;  # number of objects that contain it
  holders @6 :List(Holder);
  memory @7 :UInt64;

  struct Holder {
    worker @0 :UInt64;
    count @1 :Int64;
  }
}

struct ProcessReport {
  worker @0 :UInt64;
  job @1 :UInt64;
  pid @2 :Int32;
  role @3 :Text;
  tasks @4 :List(TaskReport);
  objects @5 :List(ObjectReport);
  leftOut @6 :UInt64;
  cause @7 :ErrorMessage;  # why it did not answer
  metrics @8 :List(MetricFamily);
  forgotten @9 :UInt64;
}

struct MetricFamily {
  name @0 :Text;
  help @1 :Text;
  kind @2 :UInt16;
  bounds @3 :List(Float64);
  samples @4 :List(Sample);

  struct Sample {
    labels @0 :List(Text);  # name, value, name, ..
    value @1 :Float64;
    counts @2 :List(UInt64);
  }
}

struct ReportedMetrics {
  metrics @0 :List(MetricFamily);
}

struct EnvironmentReport {
  text @0 :Text;      # JSON
  processes @1 :UInt32;
}

struct NodeReport {
  node @0 :UInt64;
  pid @1 :Int32;
  objects @2 :List(ObjectReport);
  environments @3 :List(EnvironmentReport);
  processes @4 :List(ProcessReport);
  leftOut @5 :UInt64;
  keptBytes @6 :UInt64;
  spilledBytes @7 :UInt64;
  limitBytes @8 :UInt64;
  metrics @9 :List(MetricFamily);
}
