// checkpoint ls|verify|export|diff: run in Python, which has the formats.

#include <string>
#include <utility>
#include <vector>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/python_module.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

namespace {

struct CheckpointOptions {
  std::string first, second;  // addresses or folders of checkpoints
  std::string format = "hf", prefix, max_shard_size = "5GiB";
};

// Replaces this process by Python's command; returns only on failure.
int run_checkpoint(const Common& common, std::vector<std::string> words) {
  if (common.json) words.push_back("--json");
  return become_python_module(common, "shoal.checkpoint", words);
}

}  // namespace

void add_checkpoint(CommandLine& line) {
  auto* group = line.add_group("checkpoint", "Commands for checkpoints of trainings: ls, verify, export, diff");
  auto& o = line.own<CheckpointOptions>();

  auto* ls = line.add_verb_without_cluster("ls", "List the tensors of a checkpoint, or the checkpoints of a run", group);
  ls->add_option("path", o.first, "A folder, or an address such as s3://bucket/run")->required();
  line.on_run(ls, [&o](const Common& common) { return run_checkpoint(common, {"ls", o.first}); });

  auto* verify = line.add_verb_without_cluster("verify", "Read every byte of a checkpoint and compare it with its hash", group);
  verify->add_option("path", o.first, "A checkpoint")->required();
  line.on_run(verify, [&o](const Common& common) { return run_checkpoint(common, {"verify", o.first}); });

  auto* convert = line.add_verb_without_cluster("export", "Convert a checkpoint, with one tensor in memory at a time", group);
  convert->add_option("source", o.first, "A checkpoint of Shoal, torch.distributed.checkpoint or Hugging Face")->required();
  convert->add_option("target", o.second, "A new folder")->required();
  convert
      ->add_option("--format", o.format,
                   "Format of the target: hf (safetensors), dcp (torch.distributed.checkpoint) or shoal (as one rank saves it)")
      ->capture_default_str()
      ->check(CLI::IsMember({"hf", "dcp", "shoal"}));
  convert->add_option("--prefix", o.prefix, "Export only tensors whose names begin with this prefix, and remove it from their names");
  convert->add_option("--max-shard-size", o.max_shard_size, "Maximum size of a file with --format hf")->capture_default_str();
  line.on_run(convert, [&o](const Common& common) {
    return run_checkpoint(
        common, {"export", o.first, o.second, "--format", o.format, "--prefix=" + o.prefix, "--max-shard-size=" + o.max_shard_size});
  });

  auto* diff = line.add_verb_without_cluster("diff", "List the tensors and values in which two checkpoints differ", group);
  diff->add_option("first", o.first, "A checkpoint")->required();
  diff->add_option("second", o.second, "The checkpoint to compare it with")->required();
  line.on_run(diff, [&o](const Common& common) { return run_checkpoint(common, {"diff", o.first, o.second}); });
}

}  // namespace shoal::scheduler::cli
