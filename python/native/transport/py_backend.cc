#include "python/native/transport/py_backend.h"

namespace shoal::python {

namespace {

using runtime::Call;
using runtime::Communicator;

nb::tuple memory_of(std::span<const std::byte> s) { return nb::make_tuple(reinterpret_cast<std::uintptr_t>(s.data()), s.size()); }
nb::tuple call_of(const Call& c) { return nb::make_tuple(c.label, c.step, std::chrono::duration<double>(c.timeout).count(), c.what); }
nb::list counts_of(Communicator::Counts counts) {
  nb::list out;
  for (const auto c : counts) out.append(c);
  return out;
}

std::string text_of(const nb::object& o, const char* name) { return nb::cast<std::string>(nb::str(nb::getattr(o, name, nb::str("")))); }

// Converts Shoal's exceptions to their Error and others to their text. A signal's exception stays set for the code that raises the error.
Error error_of(nb::python_error& e) {
  if (e.matches(PyExc_KeyboardInterrupt)) {
    e.restore();
    return cancelled("interrupted by a signal").with_reason("Interrupted");
  }
  const nb::object value = nb::borrow(e.value());
  const std::string code = text_of(value, "code");
  for (std::uint16_t c = 0; c < kNumCodes; ++c) {
    if (!nb::hasattr(value, "context") || code != code_name(static_cast<Code>(c))) continue;
    return Error(static_cast<Code>(c), text_of(value, "message")).with_reason(text_of(value, "reason")).with_hint(text_of(value, "hint"));
  }
  return unavailable(text_of(nb::borrow(e.type()), "__name__") + ": " + nb::cast<std::string>(nb::str(value)));
}

template <class F>
Result<void> in_python(F&& fn) {
  const GilTaken gil;
  try {
    fn();
    return {};
  } catch (nb::python_error& e) {
    return fail(error_of(e));
  }
}

// A Python object that may be released on any thread.
class Held {
 public:
  explicit Held(nb::object object) : object_(std::move(object)) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (Py_IsInitialized() == 0) {
      (void)object_.release();
      return;
    }
    const GilTaken gil;
    object_.reset();
  }
  const nb::object& get() const { return object_; }

 private:
  nb::object object_;
};

class PyWork final : public runtime::Work {
 public:
  PyWork(std::shared_ptr<Held> calls, nb::object message) : calls_(std::move(calls)), message_(std::move(message)) {}
  bool ended() const override {
    bool out = true;
    (void)in_python([&] { out = nb::cast<bool>(calls_->get().attr("is_ended")(message_.get())); });
    return out;
  }
  Result<void> wait() override {
    return in_python([&] { calls_->get().attr("wait")(message_.get()); });
  }

 private:
  const std::shared_ptr<Held> calls_;
  const Held message_;
};

class PyBackend final : public runtime::CollectiveBackend {
 public:
  explicit PyBackend(nb::object calls) : calls_(std::make_shared<Held>(std::move(calls))) {}

  Result<void> all_gather(std::span<const std::byte> input, std::span<std::byte> output, Communicator::Counts counts,
                          const Call& call) override {
    return in_python([&] { python("all_gather")(memory_of(input), memory_of(output), counts_of(counts), call_of(call)); });
  }
  Result<void> all_to_all(std::span<const std::byte> input, std::span<std::byte> output, Communicator::Counts sends,
                          Communicator::Counts receives, const Call& call) override {
    return in_python(
        [&] { python("all_to_all")(memory_of(input), memory_of(output), counts_of(sends), counts_of(receives), call_of(call)); });
  }
  Result<void> broadcast(std::span<std::byte> data, int root, const Call& call) override {
    return in_python([&] { python("broadcast")(memory_of(data), root, call_of(call)); });
  }
  Result<void> barrier(const Call& call) override {
    return in_python([&] { python("barrier")(call_of(call)); });
  }
  runtime::WorkPtr send(std::span<const std::byte> data, int to, std::uint32_t tag, const Call& call) override {
    return message("send", data, to, tag, call);
  }
  runtime::WorkPtr receive(std::span<std::byte> data, int from, std::uint32_t tag, const Call& call) override {
    return message("receive", data, from, tag, call);
  }
  void abort(const Error& e) override {
    (void)in_python([&] { python("abort")(code_name(e.code()), e.reason(), e.message(), e.hint()); });
  }
  void leave() override {
    if (Py_IsInitialized() != 0) (void)in_python([&] { python("leave")(); });
  }

 private:
  nb::object python(const char* name) const { return calls_->get().attr(name); }
  runtime::WorkPtr message(const char* name, std::span<const std::byte> data, int peer, std::uint32_t tag, const Call& call) {
    runtime::WorkPtr out;
    const auto started =
        in_python([&] { out = std::make_shared<PyWork>(calls_, nb::object(python(name)(memory_of(data), peer, tag, call_of(call)))); });
    return started ? out : runtime::failed_work(started.error());
  }

  const std::shared_ptr<Held> calls_;
};

}  // namespace

PyExchange make_py_exchange(nb::object exchange) {
  const auto held = std::make_shared<Held>(std::move(exchange));
  PyExchange out;
  out.check = [held] { return in_python([&] { held->get().attr("check")(); }); };
  out.call = [held](const std::string& name, const std::string& own) {
    std::vector<std::string> all;
    auto exchanged = in_python([&] {
      for (const nb::handle each : held->get()(name, nb::bytes(own.data(), own.size()))) {
        const auto bytes = nb::cast<nb::bytes>(each);
        all.emplace_back(bytes.c_str(), bytes.size());
      }
    });
    return std::move(exchanged).map([&] { return std::move(all); });
  };
  return out;
}

std::shared_ptr<runtime::CollectiveBackend> make_py_backend(nb::object calls) { return std::make_shared<PyBackend>(std::move(calls)); }

}  // namespace shoal::python
