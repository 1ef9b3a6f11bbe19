// Bindings of the step machine. Python's hooks report events; actions on tensors are calls of methods of the program's Root.
#include "fsdp/step/arena.h"
#include "python/native/fsdp/fsdp.h"
#include "runtime/telemetry/activity_scope.h"

namespace shoal::python {

using fsdp::Action;
using fsdp::StepMachine;
using fsdp::UnitRules;
using Forward = StepMachine::Forward;
using Kind = Action::Kind;
using runtime::Activity;
using runtime::Telemetry;

namespace {

// The kind of wait that an action counts as, if any. Most actions only begin the collectives of devices; only waits of the program's
// thread count.
std::optional<Activity> wait_of(const Action& a) {
  switch (a.kind) {
    case Kind::kEnter:
    case Kind::kLease:
    case Kind::kUnshard:
      return Activity::kGather;
    case Kind::kAwaitReductions:
    case Kind::kFinishReduce:
    case Kind::kReduceReplicas:
    case Kind::kFinishTransfers:
    case Kind::kFinishPass:
      return Activity::kReduce;
    case Kind::kOpenWindow:
      return Activity::kWindow;
    default:
      return {};
  }
}

// Carries out actions among ranks, and calls Python for those on tensors. An action that may wait runs without the GIL. A call may raise;
// the exception passes through perform().
class HookExecutor final : public fsdp::Executor {
 public:
  // `program` owns this object, so the reference is weak.
  HookExecutor(StepMachine& machine, nb::handle program, Telemetry* telemetry, int first_unit)
      : arena_(machine), program_(nb::steal(PyWeakref_NewRef(program.ptr(), nullptr))), telemetry_(telemetry), first_unit_(first_unit) {
    if (!program_.is_valid()) nb::raise_python_error();
    for (std::size_t kind = 0; kind < fsdp::kNumActionKinds; ++kind)
      methods_.push_back(nb::steal(PyUnicode_InternFromString(fsdp::name_of(static_cast<Kind>(kind)))));
    for (const auto view : {fsdp::View::kSharded, fsdp::View::kUnsharded, fsdp::View::kSmallerMesh, fsdp::View::kGuarded})
      views_.push_back(nb::cast(view));
  }

  fsdp::ArenaExecutor& arena() { return arena_; }

  Result<void> run(const Action& a) override {
    const runtime::ActivityScope counted(telemetry_, wait_of(a), a.unit < 0 ? -1 : first_unit_ + a.unit);
    if (fsdp::ArenaExecutor::carries_out(a.kind)) {
      if (!fsdp::ArenaExecutor::waits(a.kind)) return arena_.run(a);
      const GilReleased release;
      return arena_.run(a);
    }
    const nb::object program = program_();
    const auto method = program.attr(methods_[static_cast<std::size_t>(a.kind)]);
    switch (a.kind) {
      case Kind::kCheckRows:
      case Kind::kWatchWhole:
      case Kind::kCompareWhole:
      case Kind::kDropGradients:
        method(a.unit);
        break;
      case Kind::kShow:
        method(a.unit, views_[static_cast<std::size_t>(a.view)]);
        break;
      case Kind::kCloseRows:
        method(a.unit, a.text, a.again);
        break;
      case Kind::kBeginReduce:
        method(a.unit, a.group, a.reshard, !a.partial);
        break;
      case Kind::kKeep:
        method(a.unit, a.group, a.reshard);
        break;
      case Kind::kFinishReduce:
      case Kind::kUpdate:
      case Kind::kDropGather:
      case Kind::kReduceReplicas:
        method(a.unit, a.group);
        break;
      case Kind::kBeginGather:
        method(a.unit, a.group, a.ahead);
        break;
      case Kind::kSamplesUsed:
      case Kind::kDropReductions:
        method(a.again);
        break;
      default:
        method();
        break;
    }
    return {};
  }

 private:
  fsdp::ArenaExecutor arena_;
  const nb::object program_;
  std::vector<nb::object> methods_;  // by kind: the interned name of the program's method
  std::vector<nb::object> views_;
  Telemetry* const telemetry_;
  const int first_unit_;
};

// A program's machine with its executor, and the telemetry that counts their time, if there is one.
class Step {
 public:
  Step(nb::handle program, std::vector<StepMachine::UnitOptions> units, std::shared_ptr<Telemetry> telemetry)
      : machine_(std::move(units)),
        telemetry_(std::move(telemetry)),
        first_unit_(telemetry_ ? telemetry_->add_units(machine_.names()) : 0),
        executor_(machine_, program, telemetry_.get(), first_unit_) {}

  StepMachine& machine() { return machine_; }

  ~Step() {
    if (telemetry_) telemetry_->drop_units(first_unit_);
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  void unit_begins(Activity activity, int unit) {
    if (telemetry_) telemetry_->begin(activity, first_unit_ + unit);
  }
  void unit_ended(Activity activity, int unit) {
    if (telemetry_) telemetry_->end(activity, first_unit_ + unit);
  }
  void pass_ended() {
    if (!telemetry_) return;
    telemetry_->end(Activity::kBackward);
    if (!machine_.steps_in_backward()) return;
    const int key = -2 - first_unit_;  // Python's optimizers have keys from 0 on
    telemetry_->begin(Activity::kOptimizer, key);
    telemetry_->end_optimizer(key);
  }
  void optimizer_begin(int key) {
    perform_recovered([&] { return machine_.optimizer_begin(); });
    if (telemetry_) telemetry_->begin(Activity::kOptimizer, key);
  }
  void optimizer_end(int key) {
    perform(machine_.optimizer_end());
    if (telemetry_) telemetry_->end_optimizer(key);
  }
  void raised() {
    machine_.raised();
    if (telemetry_) telemetry_->end(Activity::kBackward);
  }
  // The program starts its step over.
  void unwind() {
    if (telemetry_) telemetry_->unwind();
  }

  // Until set_models() there are no groups, and events that use their memory are refused: the program's side may fail to make the models.
  void drop_models() {
    set_models({}, std::vector<std::vector<StepMachine::Group>>(static_cast<std::size_t>(machine_.num_units())), 1, 1);
    has_models_ = false;
  }
  void set_models(std::vector<std::shared_ptr<fsdp::ShardedModel>> models, std::vector<std::vector<StepMachine::Group>> groups, int slots,
                  int inputs) {
    std::vector<bool> open;
    for (const auto& m : models) open.push_back(m->leases().window_open());
    if (telemetry_) {
      // Counts waits inside of actions on tensors, too, such as the wait for a slot.
      for (const auto& m : models) {
        m->peers().observe_waits([t = telemetry_](bool waits) { waits ? t->wait_begin(Activity::kReduce, -1) : t->wait_end(); });
        m->peers().number_steps([t = telemetry_] { return t->step(); });
      }
    }
    executor_.arena().set_models(std::move(models));
    machine_.set_groups(std::move(groups), slots, std::move(open));
    machine_.set_inputs(inputs);
    has_models_ = true;
  }

  void perform(const Result<fsdp::Actions>& actions) { unwrap(fsdp::perform(machine_, executor_, actions)); }
  void check_models() const {
    if (has_models_) return;
    raise(invalid_argument("the sharded model has no memory: an earlier call could not make it")
              .with_hint("mend the cause of the first error, and run the model's forward again"));
  }

  void begin_pass() {
    if (machine_.pass() == StepMachine::Pass::kRunning) return;
    if (telemetry_) telemetry_->begin(Activity::kBackward);
    perform_recovered([&] { return machine_.begin_pass(); });
  }

  // Performs an event. Before it, clears away what is left of a backward pass that an exception has ended.
  template <class F>
  void perform_recovered(F&& event) {
    if (machine_.pass() == StepMachine::Pass::kLeft) perform(machine_.recover());
    perform(event());
  }

 private:
  StepMachine machine_;
  const std::shared_ptr<Telemetry> telemetry_;
  const int first_unit_;  // the telemetry's number of the machine's first unit
  HookExecutor executor_;
  bool has_models_ = false;
};

using StepClass = nb::class_<Step>;

void bind_rules(nb::module_& m) {
  nb::enum_<fsdp::View>(m, "View", "The tensors that a unit's modules hold.")
      .value("SHARDED", fsdp::View::kSharded)
      .value("UNSHARDED", fsdp::View::kUnsharded)
      .value("SMALLER_MESH", fsdp::View::kSmallerMesh)
      .value("GUARDED", fsdp::View::kGuarded);
  nb::enum_<UnitRules::AfterForward>(m, "AfterForward", "The fate of a unit's lease between forward and backward.")
      .value("DEFAULT", UnitRules::AfterForward::kDefault)
      .value("KEEP", UnitRules::AfterForward::kKeep)
      .value("RESHARD", UnitRules::AfterForward::kReshard)
      .value("SMALLER_MESH", UnitRules::AfterForward::kSmallerMesh);
  nb::class_<UnitRules>(m, "UnitRules", "The program's requests for a unit; it may change them between two events.")
      .def(nb::init<>())
      .def_rw("after_forward", &UnitRules::after_forward)
      .def_rw("reshard_after_backward", &UnitRules::reshard_after_backward)
      .def_rw("unshard_in_backward", &UnitRules::unshard_in_backward)
      .def_rw("reduces", &UnitRules::reduces, "False: a backward keeps its gradients.")
      .def_rw("everywhere", &UnitRules::everywhere, "False: gradients are reduced within a replica only.")
      .def_rw("forward_prefetch", &UnitRules::forward_prefetch)
      .def_rw("backward_prefetch", &UnitRules::backward_prefetch);
  nb::class_<StepMachine::UnitOptions>(m, "StepUnit", "A unit as the step machine knows it.")
      .def(
          "__init__",
          [](StepMachine::UnitOptions* u, std::string name, bool root, std::shared_ptr<UnitRules> rules) {
            new (u) StepMachine::UnitOptions{std::move(name), root, std::move(rules)};
          },
          nb::arg("name"), nb::arg("root"), nb::arg("rules"));
  nb::class_<StepMachine::Group>(m, "Group", "The parameters of a unit on one mesh.")
      .def(
          "__init__",
          [](StepMachine::Group* g, int model, int index, bool empty, bool collectives, bool gathers, bool replicated) {
            new (g) StepMachine::Group{model, index, empty, collectives, gathers, replicated};
          },
          nb::arg("model"), nb::arg("index"), nb::arg("empty"), nb::arg("collectives"), nb::arg("gathers"), nb::arg("replicated"));
}

void bind_forward(StepClass& step) {
  step.def(
          "forward_begin",
          [](Step& s, int unit, bool training, bool recomputed, bool alive) {
            s.check_models();
            s.unit_begins(recomputed ? Activity::kBackward : Activity::kForward, unit);
            const auto event = [&] { return s.machine().forward_begin(unit, {training, recomputed, alive}); };
            if (recomputed) {
              s.perform(event());
            } else {
              s.perform_recovered(event);
            }
          },
          nb::arg("unit"), nb::arg("training"), nb::arg("recomputed"), nb::arg("alive"))
      .def(
          "watched", [](Step& s, int unit) { s.machine().watched(unit); }, nb::arg("unit"))
      .def(
          "forward_end",
          [](Step& s, int unit, bool training, bool recomputed, bool failed) {
            s.perform(s.machine().forward_end(unit, {training, recomputed, false, failed}));
            s.unit_ended(recomputed ? Activity::kBackward : Activity::kForward, unit);
          },
          nb::arg("unit"), nb::arg("training"), nb::arg("recomputed"), nb::arg("failed"))
      .def(
          "unshard",
          [](Step& s, int unit, bool shows) {
            s.check_models();
            s.perform(s.machine().unshard(unit, shows));
          },
          nb::arg("unit"), nb::arg("shows") = true)
      .def(
          "show_unsharded", [](Step& s, int unit) { s.perform(s.machine().show_unsharded(unit)); }, nb::arg("unit"))
      .def(
          "reshard", [](Step& s, int unit) { s.perform(s.machine().reshard(unit)); }, nb::arg("unit"))
      .def(
          "show_sharded", [](Step& s, int unit) { s.perform(s.machine().show_sharded(unit)); }, nb::arg("unit"))
      .def(
          "enter",
          [](Step& s, bool training, bool alive) {
            s.check_models();
            s.perform(s.machine().enter({training, false, alive}));
          },
          nb::arg("training"), nb::arg("alive"));
}

void bind_backward(StepClass& step) {
  step.def("begin_pass", &Step::begin_pass)
      .def(
          "backward_begin",
          [](Step& s, int unit, std::vector<std::uint64_t> versions) {
            s.check_models();
            s.begin_pass();
            s.unit_begins(Activity::kBackward, unit);
            s.perform(s.machine().backward_begin(unit, std::move(versions)));
          },
          nb::arg("unit"), nb::arg("versions"), "Begins the pass, too, if none runs.")
      .def(
          "backward_end",
          [](Step& s, int unit) {
            s.begin_pass();
            s.perform(s.machine().backward_end(unit));
            s.unit_ended(Activity::kBackward, unit);
          },
          nb::arg("unit"), "Begins the pass, too, if none runs.")
      .def(
          "pass_ends",
          [](Step& s, bool alive) {
            s.perform(s.machine().pass_ends(alive));
            s.pass_ended();
          },
          nb::arg("alive"))
      .def(
          "finalize",
          [](Step& s, bool alive) {
            s.perform_recovered([&] { return s.machine().finalize(alive); });
            s.pass_ended();
          },
          nb::arg("alive"))
      .def(
          "reduce_kept", [](Step& s, bool alive) { s.perform_recovered([&] { return s.machine().reduce_kept(alive); }); }, nb::arg("alive"))
      .def("raised", &Step::raised)
      .def("reset",
           [](Step& s) {
             s.unwind();
             s.perform(s.machine().reset(/*all=*/true));
           })
      .def("start_over", [](Step& s) {
        s.unwind();
        s.perform(s.machine().start_over());
      });
}

void bind_step_window(StepClass& step) {
  step.def(
          "open_window", [](Step& s, const std::string& caller) { s.perform_recovered([&] { return s.machine().open_window(caller); }); },
          nb::arg("caller"))
      .def("optimizer_begin", &Step::optimizer_begin, nb::arg("key"), "`key`: distinguishes optimizers.")
      .def("optimizer_end", &Step::optimizer_end, nb::arg("key"))
      .def(
          "serve_publication",
          [](Step& s, int model, int unit, int group) { s.perform(s.machine().serve_publication(model, unit, group)); }, nb::arg("model"),
          nb::arg("unit"), nb::arg("group"))
      .def("serve_window", [](Step& s) { s.perform(s.machine().serve_window()); });
}

void bind_state(StepClass& step) {
  step.def("drop_models", &Step::drop_models, "Refuses events that use the models' memory until set_models.")
      .def("set_models", &Step::set_models, nb::arg("models"), nb::arg("groups"), nb::arg("slots"), nb::arg("inputs"),
           "`groups`: by unit. `slots`, `inputs`: the most reductions under way in an arena, or by collectives.")
      .def(
          "set_group", [](Step& s, int unit, int group, StepMachine::Group value) { s.machine().set_group(unit, group, value); },
          nb::arg("unit"), nb::arg("group"), nb::arg("value"))
      .def(
          "set_last_backward", [](Step& s, bool on) { s.machine().set_last_backward(on); }, nb::arg("last"))
      .def(
          "set_finalized_by_hand", [](Step& s, bool on) { s.machine().set_finalized_by_hand(on); }, nb::arg("by_hand"))
      .def(
          "set_optimizer_in_backward", [](Step& s, bool on) { s.machine().set_optimizer_in_backward(on); }, nb::arg("on"))
      .def(
          "set_joining", [](Step& s, bool on) { s.machine().set_joining(on); }, nb::arg("joining"))
      .def_prop_ro("finalized_by_hand", [](Step& s) { return s.machine().finalized_by_hand(); })
      .def_prop_ro("waits_for_finalize", [](Step& s) { return s.machine().pass() == StepMachine::Pass::kWaiting; })
      .def_prop_ro("joining", [](Step& s) { return s.machine().joining(); })
      .def_prop_ro("unstepped", [](Step& s) { return s.machine().unstepped(); })
      .def_prop_ro("window_open", [](Step& s) { return s.machine().window_open(); })
      .def_prop_ro("in_pass", [](Step& s) { return s.machine().in_pass(); })
      .def_prop_ro("running", [](Step& s) { return s.machine().running(); })
      .def(
          "in_backward", [](Step& s, int unit) { return s.machine().phase(unit) == StepMachine::Phase::kBackward; }, nb::arg("unit"))
      .def(
          "after_forward", [](Step& s, int unit) { return s.machine().after_forward(unit); }, nb::arg("unit"))
      .def(
          "everywhere", [](Step& s, int unit) { return s.machine().everywhere(unit); }, nb::arg("unit"))
      .def("gives_up", [](Step& s, int unit) { return s.machine().gives_up(unit); }, nb::arg("unit"));
}

}  // namespace

void bind_step(nb::module_& m) {
  bind_rules(m);
  StepClass step(m, "Step", "The step machine of one model (fsdp/step/step_machine.h), and the models among whose ranks it acts.");
  step.def(nb::init<nb::handle, std::vector<StepMachine::UnitOptions>, std::shared_ptr<Telemetry>>(), nb::arg("program"), nb::arg("units"),
           nb::arg("telemetry").none(), "`program` owns this object, and has a method for each action on tensors.");
  bind_forward(step);
  bind_backward(step);
  bind_step_window(step);
  bind_state(step);
}

}  // namespace shoal::python
