#include "scheduler/web/entrypoint.h"

#include <filesystem>

#include <gtest/gtest.h>

namespace shoal::scheduler::web {
namespace {

const Surroundings kAround{"/opt/venv/bin/python3", "/bin:/usr/bin", "/old", "/home/user"};

Result<actors::JobSpec> spec_of(const std::string& json) {
  SHOAL_TRY(const auto request, parse_job_request(json));
  return job_spec(request, kAround);
}

std::map<std::string, std::string> env_of(const actors::JobSpec& spec) { return {spec.launch.env.begin(), spec.launch.env.end()}; }

TEST(Entrypoint, ACommandLineRunsInAShellWithTheClustersPython) {
  const auto spec = spec_of(R"({"entrypoint": "python a.py | tee log"})").value();
  EXPECT_EQ(spec.launch.argv, (std::vector<std::string>{"/bin/sh", "-c", "exec 2>&1\npython a.py | tee log"}));
  EXPECT_EQ(spec.launch.cwd, "/home/user");
  EXPECT_EQ(env_of(spec)["PATH"], "/opt/venv/bin:/bin:/usr/bin");
  EXPECT_EQ(spec.name, "python a.py | tee log");
  EXPECT_TRUE(spec.resources.empty());
  // Without the interpreter's folder PATH gets no entry: an empty one would mean the job's own folder.
  actors::Submission s;
  s.entrypoint = "true";
  EXPECT_FALSE(env_of(job_spec({s, {}}, {"python3", "/bin", "", "/"}).value()).contains("PATH"));
}

TEST(Entrypoint, ItsRuntimeEnvIsAroundIt) {
  const auto spec =
      spec_of(R"({"entrypoint": "x", "metadata": {"job_name": "mine"}, "entrypoint_num_cpus": 2, "entrypoint_resources": {"slot": 1},
                                "runtime_env": {"working_dir": "/tmp", "env_vars": {"A": "b"}, "pip": null}})")
          .value();
  EXPECT_EQ(spec.launch.cwd, "/tmp");
  auto env = env_of(spec);
  EXPECT_EQ(env["A"], "b");
  EXPECT_EQ(env["PYTHONPATH"], "/tmp:/old");
  EXPECT_EQ(env["SHOAL_RUNTIME_ENV"].find("working_dir"), std::string::npos);  // used in place: its actors get no copy
  EXPECT_EQ(spec.name, "mine");
  EXPECT_EQ(spec.resources, actors::Resources::from_amounts({{"CPU", 2}, {"slot", 1}}).value());
  const auto by_python = spec_of(R"({"entrypoint": "x", "runtime_env": {"pip": ["six"]}})").value();
  EXPECT_EQ(by_python.launch.argv[0], kAround.python);
  EXPECT_EQ(env_of(by_python)["SHOAL_RUNTIME_ENV"], R"({"pip":["six"]})");
}

TEST(Entrypoint, WrongFieldsAreRefusedAndMissingOnesNamed) {
  const auto code = [](const std::string& json) { return spec_of(json).error().code(); };
  for (const std::string& bad : std::vector<std::string>{
           "", "[]", "{", "{}", R"({"entrypoint": ""})", R"({"entrypoint": 1})", R"({"entrypoint": "x", "nonsense": 1})",
           R"({"entrypoint": "x", "submission_id": "a/b"})", R"({"entrypoint": "x", "metadata": {"a": 1}})",
           R"({"entrypoint": "x", "entrypoint_num_cpus": -1})", R"({"entrypoint": "x", "entrypoint_num_cpus": "2"})",
           R"({"entrypoint": "x", "runtime_env": []})", R"({"entrypoint": "x", "runtime_env": {"nonsense": 1}})",
           R"({"entrypoint": "x", "runtime_env": {"working_dir": "relative"}})",
           R"({"entrypoint": "x", "runtime_env": {"working_dir": "/nonexistent"}})",
           R"({"entrypoint": "x", "runtime_env": {"env_vars": {"A=B": "c"}}})",
           R"({"entrypoint": "x", "runtime_env": {"env_vars": {"A": "b\u0000"}}})", R"({"entrypoint": "x\u0000y"})",
           R"({"entrypoint": ")" + std::string(70'000, 'x') + R"("})"}) {
    EXPECT_EQ(code(bad), Code::kInvalidArgument) << bad.substr(0, 80);
  }
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_EQ(code(R"({"entrypoint": "x", "runtime_env": {"pip": )" + deep + "}}"), Code::kInvalidArgument);
  EXPECT_TRUE(spec_of(R"({"entrypoint": "[[[[ \\\" {{{{", "metadata": {"a": "]]"}})"));
  EXPECT_EQ(code(R"({"entrypoint": "x", "runtime_env": {"conda": "e"}})"), Code::kUnimplemented);
  EXPECT_EQ(code(R"({"entrypoint": "x", "runtime_env": {"working_dir": "s3://b/x.zip"}})"), Code::kUnimplemented);
  EXPECT_EQ(code(R"({"entrypoint": "x", "entrypoint_label_selector": {"a": "b"}})"), Code::kUnimplemented);
}

}  // namespace
}  // namespace shoal::scheduler::web
