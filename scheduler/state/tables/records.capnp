@0xd18e5a70c2b94f63;

# The state that a head stores (scheduler/store), one record per row of a table. Actors and nodes are kept as the wire's rows.
# Evolution: as in control.capnp.

using Cxx = import "/capnp/c++.capnp";
using Wire = import "/actors/protocol/wire/control.capnp";
$Cxx.namespace("shoal::scheduler::records");

struct Amounts {
  amounts @0 :List(Wire.Amount);
}

struct Job {
  row @0 :Wire.JobRow;
  launches @1 :List(Wire.Launch);  # one for all processes; of submitted jobs
  wants @2 :List(Amounts);         # one for all processes, too
  placed @3 :List(UInt64);
  processes @4 :List(UInt64);
  driver @5 :UInt64;
  attached @6 :Bool;
  detached @7 :Bool;
  stopping @8 :Bool;
  order @9 :UInt64;
  nodes @10 :List(UInt64);  # where a process of the job was
  address @11 :Text;
  port @12 :UInt16;
}

struct Gang {
  spec @0 :Data;  # CreateGang
  order @1 :UInt64;
}

struct Group {
  row @0 :Wire.GroupRow;
  labels @1 :List(List(Wire.LabelMatch));
  order @2 :UInt64;
  together @3 :Text;
}

struct Worker {
  row @0 :Wire.WorkerRow;
  held @1 :List(Wire.Amount);
  group @2 :UInt64;
  bundle @3 :Int32 = -1;
  actor @4 :UInt64;
  launched @5 :Bool;
  leaving @6 :Bool;
}
