#include "python/native/metrics.h"

#include <pthread.h>

#include "python/native/bindings.h"

namespace shoal::python {

using actors::MetricKind;
using actors::MetricsRecorder;

MetricsRecorder& recorder() {
  static auto* const one = [] {
    auto* const recorder_of_process = new MetricsRecorder;  // never destroyed: threads may record until the process ends
    // Not by os.register_at_fork: its functions run Python while they hold the recorder, and another thread may then get the GIL and wait.
    pthread_atfork([] { recorder().before_fork(); }, [] { recorder().after_fork(false); }, [] { recorder().after_fork(true); });
    return recorder_of_process;
  }();
  return *one;
}

namespace {

struct Metric {
  MetricsRecorder::Metric* metric;
};

struct Series {
  MetricsRecorder::Series* series;
  const std::vector<double>* bounds;
};

Metric metric(const std::string& kind, const std::string& name, const std::string& help, std::vector<double> bounds) {
  const auto which = kind == "counter" ? MetricKind::kCounter : kind == "gauge" ? MetricKind::kGauge : MetricKind::kHistogram;
  const auto series = recorder().metric(which, name, help, std::move(bounds));
  if (!series) throw nb::value_error(series.error().message().c_str());
  return {*series};
}

}  // namespace

void bind_metrics(nb::module_& m) {
  nb::class_<Series>(m, "MetricSeries")
      .def(
          "add", [](Series& s, double value) { s.series->add(value); }, nb::arg("value"))
      .def(
          "set", [](Series& s, double value) { s.series->set(value); }, nb::arg("value"))
      .def("observe", [](Series& s, double value) { s.series->observe(value, *s.bounds); }, nb::arg("value"));
  nb::class_<Metric>(m, "Metric")
      .def(nb::new_(&metric), nb::arg("kind"), nb::arg("name"), nb::arg("help"), nb::arg("bounds"))
      .def(
          "series",
          [](Metric& metric, const std::vector<std::pair<std::string, std::string>>& tags) -> std::optional<Series> {
            auto* const series = recorder().series(*metric.metric, tags);
            if (series == nullptr) return std::nullopt;
            return Series{series, &metric.metric->bounds};
          },
          nb::arg("tags"), "None when this process has too many.");
  m.attr("MAX_METRIC_SERIES") = MetricsRecorder::kMaxSeries;
  m.def("is_metric_label", &actors::is_label, nb::arg("name"));
}

}  // namespace shoal::python
