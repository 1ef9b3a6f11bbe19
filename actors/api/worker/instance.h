// An actor, or a program's functions, without its type: what a worker constructs and calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actors/api/context/context.h"

namespace shoal::actors::api {

// The arguments of one call, and the process that runs it.
struct Arguments {
  const Value& value;
  const std::vector<Value>* deps = nullptr;
  Hub* hub = nullptr;
  const Incoming* incoming = nullptr;  // the call itself, for items sent before its answer
};

// How an actor's calls run.
struct Concurrency {
  bool on_loop = false;                   // the actor has coroutines
  std::vector<std::int32_t> groups = {};  // sizes of the actor's concurrency groups
};

// An actor of any class, as a worker uses it.
class Instance {
 public:
  virtual ~Instance() = default;
  // Returns the method's result. Returns NotFound for a method that is not listed, InvalidArgument for wrong arguments,
  // Internal/MethodThrew for an exception.
  virtual Result<Value> call(std::string_view method, const Arguments& args) = 0;
  // As call(), for calls on a loop. The arguments must live until the returned task ends; exceptions of a coroutine pass through.
  virtual Task<Value> start(std::string_view method, Arguments args) { return now(*this, method, args); }
  virtual Concurrency concurrency() const { return {}; }
  // The method's concurrency group, from 1 on; 0: none.
  virtual std::size_t group_of(std::string_view) const { return 0; }

 protected:
  static Task<Value> now(Instance& self, std::string_view method, Arguments args) { co_return self.call(method, args); }
};

using Factory = std::function<Result<std::unique_ptr<Instance>>(const Place& place, const Arguments& args)>;
using Classes = std::map<std::string, Factory, std::less<>>;  // by full name

}  // namespace shoal::actors::api
