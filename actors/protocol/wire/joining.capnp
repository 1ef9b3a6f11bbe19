@0xd1c9a6f0734be258;

# A joining host's request for a certificate (joining.h has the same as plain values). Texts are PEM; nothing is secret.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("shoal::actors::wire");

struct SignCertificate {
  request @0 :Text;
  host @1 :Text;         # its address for other hosts
}

struct SignedCertificate {
  certificate @0 :Text;  # followed by the authority's certificate
  dataTls @1 :Bool;      # the cluster encrypts data between hosts
}
