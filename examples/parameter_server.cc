// A parameter server: a named actor holds the weights of a linear model, and remote functions compute gradients on shards of the data.
// When the server's process dies it is restarted from its last checkpoint, and functions repeat the calls that it did not answer.
//
//   bazel run //examples:parameter_server          on a private cluster, which ends with it
//   SHOAL_ADDRESS=auto parameter_server            on the running one (shoal start --head)
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "actors/api/shoal.h"

using Weights = std::vector<double>;

struct Gradient {
  Weights sum;
  int num_rows = 0;
  static constexpr auto fields = shoal::fields(&Gradient::sum, &Gradient::num_rows);
};

class ParameterServer {
 public:
  ParameterServer(shoal::Place place, std::string checkpoint, std::size_t size) : checkpoint_(std::move(checkpoint)), weights_(size) {
    if (place.context->num_restarts() == 0) return;
    if (std::FILE* file = std::fopen(checkpoint_.c_str(), "rb")) {
      if (std::fread(weights_.data(), sizeof(double), size, file) != size) std::fprintf(stderr, "no checkpoint yet\n");
      std::fclose(file);
    }
  }

  Weights weights() const { return weights_; }
  // One step of gradient descent with the gradients of all shards; returns the gradient's length.
  double apply(const std::vector<Gradient>& gradients, double rate) {
    double length = 0;
    int num_rows = 0;
    for (const Gradient& g : gradients) num_rows += g.num_rows;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      double sum = 0;
      for (const Gradient& g : gradients) sum += g.sum[i];
      weights_[i] -= rate * sum / num_rows;
      length += sum * sum / num_rows / num_rows;
    }
    save();
    return std::sqrt(length);
  }

  static constexpr auto methods =
      shoal::methods(shoal::constructor<shoal::Place, std::string, std::size_t>, &ParameterServer::weights, &ParameterServer::apply);

 private:
  void save() const {
    const std::string next = checkpoint_ + ".next";
    std::FILE* file = std::fopen(next.c_str(), "wb");
    if (file == nullptr) return;
    const bool whole = std::fwrite(weights_.data(), sizeof(double), weights_.size(), file) == weights_.size();
    if (std::fclose(file) == 0 && whole) std::rename(next.c_str(), checkpoint_.c_str());
  }

  std::string checkpoint_;
  Weights weights_;
};

// A shard of generated data: y = 3 a - 2 b + 0.5, at points that depend on the shard's number.
Gradient gradient_of(int shard, int num_rows, const Weights& weights) {
  Gradient out{Weights(weights.size()), num_rows};
  for (int row = 0; row < num_rows; ++row) {
    const double a = std::sin(shard * 7.0 + row), b = std::cos(shard * 3.0 + 2.0 * row);
    const double x[] = {a, b, 1};
    const double error = weights[0] * a + weights[1] * b + weights[2] - (3 * a - 2 * b + 0.5);
    for (std::size_t i = 0; i < out.sum.size(); ++i) out.sum[i] += error * x[i];
  }
  return out;
}

shoal::Result<void> run(shoal::Context& context) {
  const char* folder = std::getenv("TMPDIR");
  const std::string checkpoint = std::string(folder != nullptr ? folder : "/tmp") + "/weights-" + to_string(context.job());
  const shoal::ActorOptions lasting{.name = "weights", .max_restarts = 3, .max_task_retries = 1};
  // The actor lives as long as this handle or its copies: a name does not keep it.
  SHOAL_TRY(const auto kept, context.spawn<ParameterServer>(lasting, checkpoint, std::size_t{3}));

  SHOAL_TRY(const auto server, context.get_actor<ParameterServer>("weights"));  // any process of this job may do this
  shoal::StepRecord& record = context.record();  // with SHOAL_RUN_FOLDER=DIR, `shoal show DIR` prints what became of the steps
  for (int step = 0; step < 60; ++step) {
    // The weights are a future: the functions begin when it is ready, and this loop waits only for gradients.
    const auto weights = server.call(&ParameterServer::weights);
    std::vector<shoal::Future<Gradient>> under_way;
    for (int shard = 0; shard < 4; ++shard) under_way.push_back(context.remote<&gradient_of>()(shard, 100, weights));
    std::vector<Gradient> gradients;
    while (!under_way.empty()) {  // in the order in which gradients arrive
      const auto time = record.at(shoal::Activity::kBackward, "shards");
      SHOAL_TRY(const auto some, shoal::wait(under_way, 1));
      SHOAL_TRY(auto gradient, under_way[some.ready[0]].get());
      gradients.push_back(std::move(gradient));
      under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(some.ready[0]));
    }
    double length = 0;
    {
      const auto time = record.at(shoal::Activity::kOptimizer);
      SHOAL_TRY(length, server.call(&ParameterServer::apply, gradients, 0.8).get());
    }
    record.report({{"gradient", length}});
    record.end_step();
    if (step % 20 == 0) std::printf("step %d: gradient %.3f\n", step, length);
    if (step == 30) {
      SHOAL_OK(context.kill(server, /*no_restart=*/false));
      std::printf("the server's process is gone, and started again\n");
    }
  }
  SHOAL_TRY(const auto learned, server.call(&ParameterServer::weights).get());
  std::printf("y = %.2f a + %.2f b + %.2f\n", learned[0], learned[1], learned[2]);
  std::remove(checkpoint.c_str());
  return {};
}

int main(int argc, char** argv) { return shoal::main<ParameterServer, shoal::Functions<&gradient_of>>(argc, argv, run); }
