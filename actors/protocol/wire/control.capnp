@0xb7f2d6a94c1e8035;

# Messages between head, nodes and clients (the headers of this folder and of actors/protocol/cluster have the same as plain values).
#
# Evolution: fields are only added; a reader of version N understands N-1, whose absent fields read as their defaults. Enums are
# UInt16, which the reader checks.

using Cxx = import "/capnp/c++.capnp";
using import "/runtime/wire/error.capnp".ErrorMessage;
$Cxx.namespace("shoal::actors::wire");

struct Pair {
  name @0 :Text;
  value @1 :Text;
}

struct Amount {
  name @0 :Text;
  units @1 :Int64;
}

struct Launch {
  kind @0 :UInt16;
  program @1 :Text;
  argv @2 :List(Text);
  torch @3 :Bool;
  buildId @4 :Text;
  cwd @5 :Text;
  env @6 :List(Pair);
  pythonPath @7 :List(Text);
}

struct LabelMatch {
  label @0 :Text;
  values @1 :List(Text);
  negated @2 :Bool;
}

struct Where {
  group @0 :UInt64;
  bundle @1 :Int32 = -1;
  node @2 :UInt64;
  soft @3 :Bool;
  spread @4 :Bool;
  labels @5 :List(LabelMatch);
  prefers @6 :List(LabelMatch);
  atOnce @7 :Bool;
}

struct ActorSpec {
  id @0 :UInt64;
  className @1 :Text;
  resources @2 :List(Amount);
}

struct ActorRow {
  id @0 :UInt64;
  className @1 :Text;
  state @2 :UInt16;
  job @3 :UInt64;
  node @4 :UInt64;
  worker @5 :UInt64;
  pid @6 :Int32;
  gang @7 :UInt64;
  rank @8 :Int32;
  worldSize @9 :Int32;
  generation @10 :UInt64;
  endpoint @11 :Text;
  pendingReason @12 :Text;
  attributes @13 :List(Pair);
  cause @14 :ErrorMessage;
  name @15 :Text;
  nameSpace @16 :Text;
  detached @17 :Bool;
  maxRestarts @18 :Int32;
  maxTaskRetries @19 :Int32;
  numRestarts @20 :UInt32;
  previous @21 :UInt64;  # the worker before the last restart
}

struct NodeRow {
  id @0 :UInt64;
  host @1 :Text;
  pid @2 :Int32;
  state @3 :UInt16;
  endpoint @4 :Text;
  total @5 :List(Amount);
  available @6 :List(Amount);
  labels @7 :List(Pair);
  cordoned @8 :Bool;
  drainUntilUnixMs @9 :Int64;  # 0: no drain
}

struct GroupRow {
  id @0 :UInt64;
  job @1 :UInt64;
  name @2 :Text;
  nameSpace @3 :Text;
  strategy @4 :UInt16;
  state @5 :UInt16;
  bundles @6 :List(Bundle);
  pendingReason @7 :Text;
  cause @8 :ErrorMessage;
}

struct Bundle {
  resources @0 :List(Amount);
  node @1 :UInt64;  # 0: the bundle waits for a node
}

struct WorkerRow {
  id @0 :UInt64;
  node @1 :UInt64;
  job @2 :UInt64;
  pid @3 :Int32;
  state @4 :UInt16;
  role @5 :Text;
  rank @6 :Int32;
  cause @7 :ErrorMessage;
}

# The arguments of a submitted job, as they are displayed.
struct Submission {
  id @0 :Text;
  entrypoint @1 :Text;
  runtimeEnv @2 :Text;  # JSON
  metadata @3 :List(Pair);
}

struct JobRow {
  id @0 :UInt64;
  name @1 :Text;
  state @2 :UInt16;
  driverPid @3 :Int32;
  numWorkers @4 :UInt32;
  startedUnixMs @5 :Int64;
  endedUnixMs @6 :Int64;
  exitCode @7 :Int32;
  pendingReason @8 :Text;
  cause @9 :ErrorMessage;
  submission @10 :Submission;
}

# ---- to the head -------------------------------------------------------------------------------------------------------------------

struct RegisterNode {
  id @0 :UInt64;
  host @1 :Text;
  pid @2 :Int32;
  endpoint @3 :Text;
  resources @4 :List(Amount);
  labels @5 :List(Pair);
}

struct RegisteredNode {
  session @0 :Text;
  heartbeatMs @1 :UInt32;
  heads @2 :List(Text);  # endpoints of all heads, where there are several
}

struct Heads {
  endpoints @0 :List(Text);
  moved @1 :Bool;
}

struct WorkerUpdate {
  worker @0 :UInt64;
  state @1 :UInt16;
  pid @2 :Int32;
  endpoint @3 :Text;      # when it takes calls
  shellCode @4 :Int32;    # when it exited
  cause @5 :ErrorMessage; # when it exited
  job @6 :UInt64;
  role @7 :Text;
}

struct RegisterDriver {
  name @0 :Text;
  pid @1 :Int32;
  job @2 :UInt64;  # 0: a new job; otherwise this process's job
}

struct RegisteredDriver {
  job @0 :UInt64;
  node @1 :Text;     # endpoint of the node on the driver's host
  session @2 :Text;
}

struct CreateGang {
  id @0 :UInt64;
  job @1 :UInt64;
  actors @2 :List(ActorSpec);
  launch @3 :Launch;
  refuseInfeasible @4 :Bool;
  name @5 :Text;       # only for a single actor
  nameSpace @6 :Text;
  handle @7 :Data;     # returned to processes that find it by name
  getIfExists @8 :Bool;
  detached @9 :Bool;
  where @10 :Where;
  maxRestarts @11 :Int32;
  maxTaskRetries @12 :Int32;
  creationSpec @13 :Data;     # construction data for restarts
  creator @14 :UInt64; # the worker that asked for it; 0: a driver
}

struct KillActor {
  actor @0 :UInt64;
  restart @1 :Bool;    # only ends its process, as if it had died
  handOn @2 :Bool;     # retires a worker of functions, whose actors become its maker's
}

# From a worker that makes its actor from its creation spec; answered with FoundActor, whose handle is that spec.
struct GetCreationSpec {
  worker @0 :UInt64;
}

struct CreateGroup {
  id @0 :UInt64;
  job @1 :UInt64;
  name @2 :Text;
  nameSpace @3 :Text;
  strategy @4 :UInt16;
  bundles @5 :List(Bundle);
  labels @6 :List(List(LabelMatch));  # required of each bundle's node, or empty
  detached @7 :Bool;
  together @8 :Text;
}

# A worker lends its CPUs while it waits or is idle, or needs them again.
struct WorkerBlocked {
  worker @0 :UInt64;
  blocked @1 :Bool;
}

struct GroupRef {
  group @0 :UInt64;
}

struct FindActor {
  name @0 :Text;
  nameSpace @1 :Text;
}

# Also the answer to CreateGang, which is empty unless get_if_exists found an actor.
struct FoundActor {
  row @0 :ActorRow;
  handle @1 :Data;
}

struct SubmitJob {
  name @0 :Text;
  launch @1 :Launch;
  numWorkers @2 :UInt32;
  resources @3 :List(Amount);
  wait @4 :Bool;
  ownerPid @5 :Int32;
  submission @6 :Submission;
}

struct StopJob {
  job @0 :UInt64;
  force @1 :Bool;
}

# scheduling: 0 takes new work, 1 takes none (cordoned), 2 also leaves once it is idle or the deadline is over (drains).
struct SetNodeScheduling {
  node @0 :UInt64;
  scheduling @1 :UInt16;
  deadlineMs @2 :UInt64;
}

struct JobRef {
  job @0 :UInt64;
}

struct ActorRef {
  actor @0 :UInt64;
}

# Places an actor in an existing process: a ShardActor in its rank. The answer comes when the gang is complete.
struct HostActor {
  actor @0 :UInt64;
  className @1 :Text;
  gangKey @2 :Text;
  rank @3 :Int32;
  worldSize @4 :Int32;
  worker @5 :UInt64;
  job @6 :UInt64;
  pid @7 :Int32;
  endpoint @8 :Text;
  attributes @9 :List(Pair);
}

struct HostedActor {
  gang @0 :UInt64;
  generation @1 :UInt64;
  members @2 :List(UInt64);  # actor ids by rank
}

struct SetAttributes {
  actor @0 :UInt64;
  attributes @1 :List(Pair);
}

struct ListRequest {
  what @0 :UInt16;  # 0 actors, 1 nodes, 2 workers, 3 jobs, 4 placement groups
  job @1 :UInt64;   # 0: all
  after @2 :UInt64; # only rows whose id is greater: the next page
}

struct ListReply {
  actors @0 :List(ActorRow);
  nodes @1 :List(NodeRow);
  workers @2 :List(WorkerRow);
  jobs @3 :List(JobRow);
  last @4 :UInt64;  # the id to ask again after; 0: complete
  groups @5 :List(GroupRow);
}

struct StatusReply {
  session @0 :Text;
  headPid @1 :Int32;
  total @2 :List(Amount);
  available @3 :List(Amount);
  numNodes @4 :UInt32;
  numWorkers @5 :UInt32;
  numActors @6 :UInt32;
  numJobs @7 :UInt32;
  pending @8 :List(Text);
  store @9 :Text;
  heads @10 :List(Text);
  wantedBack @11 :Bool;
  numPending @12 :UInt32;
  setAside @13 :List(Text);
  numSetAside @14 :UInt32;
  resourcesLeftOut @15 :UInt32;
}

struct Warning {
  text @0 :Text;
}

# A joining host's request for a certificate. Texts are PEM; nothing is secret.
struct SignCertificate {
  request @0 :Text;
  host @1 :Text;         # its address for other hosts
}

struct SignedCertificate {
  certificate @0 :Text;  # followed by the authority's certificate
  dataTls @1 :Bool;      # the cluster encrypts data between hosts
}

# Folders sent to hosts that lack them.
struct PackagePart {
  name @0 :Text;    # SHA-256 of the package, in hexadecimal
  total @1 :UInt64; # bytes of the package
  offset @2 :UInt64;
  data @3 :Data;
}

struct HasPackage {
  whole @0 :Bool;
}

# ---- to a node ---------------------------------------------------------------------------------------------------------------------

struct StartWorker {
  worker @0 :UInt64;
  job @1 :UInt64;
  launch @2 :Launch;
  rank @3 :Int32;     # -1: none
  label @4 :Text;     # prefix of its log lines
  gpuUnits @5 :Int64 = -1;  # units of GPUs that it may use; below 0: the node does not restrict it
  runAgain @6 :Bool;  # its function, or its restartable actor, runs again if it dies
}

struct StopWorker {
  worker @0 :UInt64;
  signal @1 :Int32;
  graceMs @2 :UInt32;  # then SIGKILL
}

struct KillHosted {
  worker @0 :UInt64;
  pid @1 :Int32;
  actor @2 :UInt64;
  cause @3 :ErrorMessage;
}

struct Attach {
  worker @0 :UInt64;  # 0: not started by this node, which assigns an id
  job @1 :UInt64;
  role @2 :Text;      # "driver", "rank 1", ...
}

struct Attached {
  node @0 :UInt64;
  job @1 :UInt64;
  head @2 :Text;
  session @3 :Text;
  host @4 :Text;
  worker @5 :UInt64;
  member @6 :Int32 = -1;  # on the usage board, whose descriptor is attached; -1: the board is full
  spill @7 :Text;         # the folder for spilled objects
}

struct OpenArena {
  key @0 :Text;     # unique within the job
  bytes @1 :UInt64; # set by the first request; others must be equal, or 2^64 - 1 for a memory that exists already
  job @2 :UInt64;
  member @3 :Int32; # >= 0: this process's member on the membership page at the memory's start
  lasting @4 :Bool; # the memory outlives the deaths of its holders
}

struct OpenedArena {
  created @0 :Bool;
}

struct ArenaRef {
  key @0 :Text;
  job @1 :UInt64;
}

struct ObjectRef {
  id @0 :UInt64;
  job @1 :UInt64;
  bytes @2 :UInt64;
  owner @3 :UInt64;
  contains @4 :List(ObjectKey);  # objects that it refers to
  home @5 :UInt64;               # the node that has it, or will have it; 0: the receiver
}

struct ObjectKey {
  job @0 :UInt64;
  id @1 :UInt64;
  home @2 :UInt64;  # the node that has it, or will have it
}

# Another node's request for a part of an object.
struct PullObject {
  object @0 :ObjectRef;
  offset @1 :UInt64;
  bytes @2 :UInt64;  # maximum; the answer's payload has them
}

# A process has no memory for an object of so many bytes.
struct MakeRoom {
  bytes @0 :UInt64;
}

# Changes in processes' counts of references to objects, and further changes between nodes.
struct CountObjects {
  changes @0 :List(Change);
  number @1 :UInt64;  # from node to node: counts these messages

  struct Change {
    object @0 :ObjectKey;
    holder @1 :UInt64;      # 0: the sender
    by @2 :Int64;
    holderNode @3 :UInt64;  # 0: the receiving node
    kind @4 :UInt16;
  }
}

# The calling node, and the node that it expects at this endpoint.
struct MeetNode {
  caller @0 :UInt64;
  called @1 :UInt64;
}

struct NodeRef {
  node @0 :UInt64;
}

struct NodeGone {
  node @0 :UInt64;
  cause @1 :ErrorMessage;
}

struct LogLines {
  worker @0 :UInt64;
  rank @1 :Int32;
  label @2 :Text;
  stream @3 :UInt16;  # 1 stdout, 2 stderr; the lines are the payload
  pid @4 :Int32;
}

struct FreePort {
  port @0 :UInt16;
}

struct ReadLog {
  worker @0 :UInt64;
  stream @1 :UInt16;
  tailBytes @2 :UInt64;
}

# A log file of the session on the node's host.
struct ReadLogFile {
  name @0 :Text;
  tailBytes @1 :UInt64;
}

# The output of one call (task_log.h).
struct ReadTaskLog {
  worker @0 :UInt64;
  stream @1 :UInt16;
  tailBytes @2 :UInt64;
  caller @3 :UInt64;
  number @4 :UInt64;
}

# The request to cancel another process's call.
struct CancelResult {
  job @0 :UInt64;
  object @1 :UInt64;
  home @2 :UInt64;
  owner @3 :UInt64;
  recursive @4 :Bool;
  force @5 :Bool;
}

# ---- to an actor -------------------------------------------------------------------------------------------------------------------

# A serialized value (actors/value/value.h). If not shared, its bytes are the next in the frame's payload. If shared, they are in a memory
# that describes itself, the frame's next descriptor. An answer without a body, and a call without args and deps, have a plain value: one
# piece, which is the whole payload.
struct Value {
  head @0 :UInt64;
  buffers @1 :List(UInt64);
  shared @2 :Bool;
  raised @3 :Bool;
  object @4 :UInt64;
  contains @5 :List(ObjectKey);  # objects that it refers to; counted for the receiver
}

struct Call {
  actor @0 :UInt64;
  method @1 :Text;
  caller @2 :Text;
  args @3 :Value;
  deps @4 :List(Value);  # values of the references in args, which has placeholders for them
  from @5 :UInt64;       # the caller's process; only in the first call over a connection, for all calls
  fromNode @6 :UInt64;   # the caller's node
  task @7 :UInt64;       # its number among the caller's tasks
  function @8 :Text;     # the name of the remote function; absent for a method
}

# Cancels a call.
struct CancelCall {
  actor @0 :UInt64;
  request @1 :UInt64;  # the call's number on this connection
  recursive @2 :Bool;
  force @3 :Bool;
}

# ---- from a further host of a run to the first one --------------------------------------------------------------------------------

# Parts of a run's folder.
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
