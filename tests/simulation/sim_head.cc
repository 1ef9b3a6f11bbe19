#include "tests/simulation/sim_head.h"

#include "runtime/core/check.h"

namespace shoal::simulation {

using namespace std::chrono_literals;

class SimHead::Client final : public scheduler::Store {
 public:
  Client(SimEtcd& etcd, std::string host, std::uint64_t term) : etcd_(etcd), host_(std::move(host)), term_(term) {}
  ~Client() override { *alive_ = false; }
  void commit(const std::vector<scheduler::Record>& records, std::function<void(Result<void>)> done) override {
    SHOAL_CHECK(!std::exchange(busy_, true), "a commit before the one under way is over");
    std::vector<scheduler::Record> copy;
    for (const auto& r : records) copy.push_back({r.table, r.id, r.name, r.state, r.bytes.clone()});
    etcd_.commit(host_, term_, std::move(copy), [this, alive = alive_, done = std::move(done)](std::optional<bool> kept) {
      if (!*alive) return;
      busy_ = false;
      if (!kept) return done(fail(unavailable("nobody knows")));
      done(*kept ? Result<void>() : fail(unavailable("another one leads").with_reason("Fenced")));
    });
  }
  Result<std::vector<scheduler::Record>> load() override { return etcd_.load(); }

 private:
  SimEtcd& etcd_;
  const std::string host_;
  const std::uint64_t term_;
  bool busy_ = false;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

SimHead::SimHead(runtime::SimWorld& world, ProcessTable& processes, SimEtcd& etcd, runtime::Endpoint at, std::vector<std::string> heads,
                 runtime::Log log)
    : world_(world),
      processes_(processes),
      etcd_(etcd),
      at_(std::move(at)),
      heads_(std::move(heads)),
      log_(std::move(log)),
      clock_(world.clock_of(at_.host)) {
  begin();
}

SimHead::~SimHead() { end(); }

void SimHead::begin() {
  alive_ = std::make_shared<bool>(true);
  network_ = world_.fabric().attach(at_.host, processes_.start());
  campaign();
}

void SimHead::end() {
  *alive_ = false;
  again_ = {};
  restarting_ = {};
  network_->crash();
  processes_.ended(network_->pid());
  head_.reset();
  store_.reset();
  network_.reset();
  term_ = 0;
}

void SimHead::campaign() {
  const auto sent = clock_.now();
  etcd_.lead(at_.host, network_->pid(), term_, [this, alive = alive_, sent](std::optional<std::uint64_t> term) {
    if (!*alive) return;
    if (term && *term != term_ && term_ != 0) return start_again();
    if (term && *term != 0) leads_until_ = sent + SimEtcd::kProof;
    if (term && *term != 0 && term_ == 0) elected(*term);
    again_ = clock_.after(head_ ? 1s : 200ms, [this] { campaign(); });
  });
}

void SimHead::elected(std::uint64_t term) {
  term_ = term;
  store_ = std::make_unique<Client>(etcd_, at_.host, term);
  scheduler::Head::Options o;
  o.listen = {at_};
  o.session = "simulated";
  o.pid = network_->pid();
  o.leads = [this] { return clock_.now() < leads_until_; };
  o.on_fenced = [this] { start_again(); };
  head_ = std::make_unique<scheduler::Head>(clock_, world_.random(), *network_, *store_, log_, o);
  head_->set_heads(heads_);
  SHOAL_CHECK(head_->start(), "the head does not start");
}

void SimHead::start_again() {
  restarting_ = clock_.after(1ms, [this] {
    end();
    begin();
  });
}

}  // namespace shoal::simulation
