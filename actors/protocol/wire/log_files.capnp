@0x8e7f5b084c69d418;

# Log files of a session on another host (log_files.h has the same as a plain value).

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("shoal::actors::wire");

struct ReadLogFile {
  name @0 :Text;
  tailBytes @1 :UInt64;
}
