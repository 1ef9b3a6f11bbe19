// A worker process of the simulated world: the real ActorHost, and the protocol of actors/session with its node (attach, listen, ready).
// Its actor answers a few methods.
//
// Owned by its SimLauncher, which destroys it when the process ends. Loop thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "actors/session/references/actor_host.h"
#include "runtime/net/peer.h"
#include "runtime/process/process.h"
#include "runtime/sim/sim_world.h"
#include "scheduler/node/processes/launcher.h"

namespace shoal::simulation {

class SimWorker final : public runtime::PeerHandler, private actors::Hosted {
 public:
  using Exit = std::function<void(runtime::ExitStatus)>;

  // Starts to connect at once. `exit` is called when the process ends by its own doing; the call may come from inside any callback.
  SimWorker(runtime::SimWorld& world, const std::string& host, pid_t pid, const scheduler::Launcher::Env& env, Exit exit);
  ~SimWorker() override;

  // Cuts the network: no frame of this worker is delivered any more.
  void crash() { network_->crash(); }

  std::uint64_t num_calls() const { return num_calls_; }

 private:
  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer& peer, runtime::Request notice) override;
  void on_closed(runtime::Peer& peer, const Error& why) override;
  void on_call(actors::Incoming incoming) override;
  void on_kill(const Error&) override {}

  void attach();
  void ready();
  void fail_start(const Error& why);

  runtime::SimWorld& world_;
  const std::string host_;
  runtime::Clock& clock_;
  const pid_t pid_;
  const Exit exit_;
  std::string node_;
  WorkerId worker_;
  JobId job_;
  std::unique_ptr<runtime::SimNetwork> network_;
  std::unique_ptr<actors::ActorHost> actors_;
  std::unique_ptr<runtime::Peer> link_;  // the connection to the node
  std::uint64_t num_calls_ = 0;
  std::map<std::string, std::set<std::uint64_t>> seen_;  // by caller, the numbers of the calls that have arrived
  std::map<std::uint64_t, std::pair<actors::Incoming, runtime::Timer>> slow_;
};

// Conversions between text and values.
actors::Value text_value(const std::string& text);
std::string text_of(const actors::Value& value);

}  // namespace shoal::simulation
