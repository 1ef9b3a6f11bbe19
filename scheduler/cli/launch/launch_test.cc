#include <gtest/gtest.h>

#include "runtime/core/golden.h"
#include "scheduler/cli/launch/batch_script.h"
#include "scheduler/cli/launch/job_set.h"
#include "scheduler/cli/launch/request.h"
#include "scheduler/cli/launch/secrets.h"
#include "scheduler/cli/launch/ssh_script.h"

namespace shoal::scheduler::cli {
namespace {

// Words that a shell, YAML or Kubernetes would take for something of theirs.
const std::vector<std::string> kHostile = {
    "train.py", "--note",     "a 'b' \"c\" \\ $HOME `id` $(id)", "",         "\n#SBATCH --uid=0\n", "#x",
    "~",        "A=1; rm -f", "- x: {y: [z]} # &a *a !t %",      "\u0085é😀"};

LaunchRequest request_of(LaunchTarget launcher, const std::string& hosts = "2") {
  LaunchRequest out{.name = "", .words = {"examples/train.py", "--steps", "100"}};
  if (!hosts.empty()) {
    EXPECT_TRUE(read_hosts(hosts, out));
  }
  const bool pods = launcher == LaunchTarget::kJobSet || launcher == LaunchTarget::kKueue;
  if (pods) out.image = "registry.example/team/train:1.4";
  if (launcher == LaunchTarget::kKueue) out.queue = "research";
  return out;
}

LaunchRequest elastic_request(LaunchTarget launcher) {
  auto out = request_of(launcher, launcher == LaunchTarget::kSsh ? "gpu1,gpu2,gpu3" : "");
  out.min = 2;
  out.max = 8;
  out.num_ranks = 8;
  out.grace_s = 100;
  if (launcher == LaunchTarget::kSsh) {
    out.folder = "/data/my run";
    return out;
  }
  out.gpus = 8;
  out.cpus = 96;
  out.time = std::chrono::hours(36);
  if (launcher == LaunchTarget::kSlurm) {
    out.partition = "gpu";
    out.account = "lab";
    return out;
  }
  out.memory = "512Gi";
  out.space = "research";
  out.volumes = {{"checkpoints", "/checkpoints"}};
  return out;
}

std::string text_of(const LaunchRequest& given, LaunchTarget launcher) {
  const auto request = complete(given, launcher);
  EXPECT_TRUE(request) << request.error().to_string();
  if (!request) return "";
  if (launcher == LaunchTarget::kSlurm) return batch_script(*request);
  return launcher == LaunchTarget::kSsh ? ssh_script(*request) : job_set(*request);
}

void expect_as_in(const LaunchRequest& given, LaunchTarget launcher, const std::string& name) {
  expect_golden(text_of(given, launcher), "scheduler/cli/launch/testdata/" + name);
}

void expect_refused(const LaunchRequest& given, LaunchTarget launcher, const std::string& text) {
  const auto decided = complete(given, launcher);
  ASSERT_FALSE(decided) << text;
  EXPECT_NE(decided.error().to_string().find(text), std::string::npos) << decided.error().to_string();
}

TEST(Launch, ARunOfAFixedNumberOfHosts) {
  expect_as_in(request_of(LaunchTarget::kSlurm), LaunchTarget::kSlurm, "fixed.sbatch");
  expect_as_in(request_of(LaunchTarget::kJobSet), LaunchTarget::kJobSet, "fixed.yaml");
  expect_as_in(request_of(LaunchTarget::kKueue), LaunchTarget::kKueue, "fixed-kueue.yaml");
  expect_as_in(request_of(LaunchTarget::kSsh, "gpu1,gpu2"), LaunchTarget::kSsh, "fixed-ssh.sh");
}

TEST(Launch, AnElasticRun) {
  expect_as_in(elastic_request(LaunchTarget::kSlurm), LaunchTarget::kSlurm, "elastic.sbatch");
  expect_as_in(elastic_request(LaunchTarget::kJobSet), LaunchTarget::kJobSet, "elastic.yaml");
  expect_as_in(elastic_request(LaunchTarget::kKueue), LaunchTarget::kKueue, "elastic-kueue.yaml");
  expect_as_in(elastic_request(LaunchTarget::kSsh), LaunchTarget::kSsh, "elastic-ssh.sh");
}

TEST(Launch, WordsThatNothingMayTakeForItsOwn) {
  for (const auto& [launcher, name] : {std::pair{LaunchTarget::kSlurm, "hostile.sbatch"},
                                       {LaunchTarget::kJobSet, "hostile.yaml"},
                                       {LaunchTarget::kSsh, "hostile-ssh.sh"}}) {
    auto request = request_of(launcher, launcher == LaunchTarget::kSsh ? "gpu1" : "1");
    request.words = kHostile;
    expect_as_in(request, launcher, name);
  }
}

TEST(Launch, VariablesOfTheRun) {
  for (const auto& [launcher, name] : {std::pair{LaunchTarget::kSlurm, "variables.sbatch"},
                                       {LaunchTarget::kJobSet, "variables.yaml"},
                                       {LaunchTarget::kSsh, "variables-ssh.sh"}}) {
    auto request = request_of(launcher, launcher == LaunchTarget::kSsh ? "gpu1" : "1");
    request.variables = {{"SHOAL_FSDP", "1"}, {"NOTE", "it's $(id)\n`x`"}, {"EMPTY", ""}, {"CALLERS", "$x", true}};
    if (launcher == LaunchTarget::kSsh) request.port = 7461;
    expect_as_in(request, launcher, name);
  }
}

TEST(Launch, ReadsVariables) {
  const auto callers = [](const std::string& name) { return name == "SET" ? std::optional<std::string>("x=y") : std::nullopt; };
  EXPECT_EQ(read_variable("A=b=c", callers)->value, "b=c");
  EXPECT_EQ(read_variable("A=", callers)->value, "");
  EXPECT_EQ(read_variable("SET", callers)->value, "x=y");
  EXPECT_TRUE(read_variable("SET", callers)->inherited);
  EXPECT_FALSE(read_variable("A=b", callers)->inherited);
  for (const char* text : {"", "=x", "1A=x", "A-B=x", "A B", "UNSET"}) EXPECT_FALSE(read_variable(text, callers)) << text;
}

TEST(Secrets, WholeWordsOfNamesAndSomeEndsSaySo) {
  for (const char* name : {"HF_TOKEN", "APIKEY", "OPENAI_APIKEY", "DB_PASS", "GITHUB_PAT", "BASIC_AUTH", "HFTOKEN", "PGPASSWORD",
                           "MYSECRET", "GCPCREDENTIALS", "api-key", "aws_secret_access_key"})
    EXPECT_TRUE(names_secret(name)) << name;
  for (const char* name : {"PATH", "PATTERN", "MONKEY", "KEYBOARD", "AUTHOR", "BYPASS", "PASSES", "TOKENIZERS_PARALLELISM", "MAX_TOKENS",
                           "KEY_FILE", "token-file", "SSH_AUTH_SOCK", "SECRETS_DIR"})
    EXPECT_FALSE(names_secret(name)) << name;
}

TEST(Secrets, TextsLoseSecretsAlone) {
  EXPECT_EQ(without_secrets("WANDB_API_KEY=sk-1, and more"), "WANDB_API_KEY=(secret)");
  EXPECT_EQ(without_secrets("--hub-token=a"), "--hub-token=(secret)");
  EXPECT_EQ(without_secrets("export A=b HF_TOKEN='x y' C=d; PW_PASS=1;"), "export A=b HF_TOKEN=(secret) C=d; PW_PASS=(secret);");
  EXPECT_EQ(without_secrets("A=s3://me:abc@host/a@b?token=x&n=1"), "A=s3://***@host/a@b?token=(secret)&n=1");
  EXPECT_EQ(without_secrets("postgres://u:p/w@h and https://x@y"), "postgres://***@h and https://***@y");
  for (const char* text : {"", "=", "A=", "A=b", "PATH=/a:/b", "http://host:80/a@b", "http://[::1]:80/a@b", "://", "a@b:c"})
    EXPECT_EQ(without_secrets(text), text);
  EXPECT_TRUE(has_password("A=b://u:p@h"));
  EXPECT_TRUE(has_password("x://h x://u:p/w@h"));
  for (const char* text : {"git://me@host", "http://h:80/a@b", "me:pw@h", "a:b@c://"}) EXPECT_FALSE(has_password(text)) << text;
}

TEST(Launch, RefusesSecretsInFiles) {
  for (const auto launcher : {LaunchTarget::kSlurm, LaunchTarget::kJobSet, LaunchTarget::kKueue, LaunchTarget::kSsh}) {
    auto request = request_of(launcher, launcher == LaunchTarget::kSsh ? "gpu1" : "1");
    for (const char* name : {"HF_TOKEN", "WANDB_API_KEY", "aws_secret_access_key"}) {
      request.variables = {{name, "x"}};
      expect_refused(request, launcher, "its name says that it is a secret");
    }
    request.variables = {{"DATABASE", "postgres://me:pw@host/x"}};
    expect_refused(request, launcher, "its value has an address with a password");
    request.variables = {{"HF_TOKEN", "x", true}};
    EXPECT_EQ(bool(complete(request, launcher)), launcher == LaunchTarget::kSsh);  // which passes the value through stdin
    request.variables = {{"SHOAL_TOKEN", "x", true}};
    expect_refused(request, launcher, "the secret by which the hosts meet");
    request.variables = {{"A", "1"}, {"A", "2"}};
    expect_refused(request, launcher, "twice");
    request.variables = {{"TOKENIZERS_PARALLELISM", "0"}, {"KEY_FILE", "/x"}};
    EXPECT_TRUE(complete(request, launcher));
  }
}

TEST(Launch, AShellsWord) {
  EXPECT_EQ(shell_word("a/b-c.d,e:1"), "a/b-c.d,e:1");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("a=b"), "'a=b'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
}

TEST(Launch, AStringOfYaml) {
  EXPECT_EQ(yaml_text("no"), "\"no\"");
  EXPECT_EQ(yaml_text("a\"b\\c\n\t"), "\"a\\\"b\\\\c\\u000a\\u0009\"");
  EXPECT_EQ(yaml_text("\x7f\u0085\u2028\ufeff"), "\"\\u007f\\u0085\\u2028\\ufeff\"");
  EXPECT_EQ(yaml_text("é😀"), "\"é😀\"");
}

TEST(Launch, ALimit) {
  using std::chrono::seconds;
  for (const auto& [text, expected] :
       {std::pair{"90s", 90}, {"45m", 2700}, {"4h", 14400}, {"2d", 172800}, {"12:00:01", 43201}, {"1-02:03:04", 93784}}) {
    const auto limit = read_limit(text);
    ASSERT_TRUE(limit) << text;
    EXPECT_EQ(*limit, seconds(expected)) << text;
  }
  for (const char* text : {"", "30", "h", "4 h", "1:00", "0s", "-1h", "1-4h", "1e3s", "999999999d", "1::2"})
    EXPECT_FALSE(read_limit(text)) << text;
}

TEST(Launch, ANameAfterTheScript) {
  auto request = request_of(LaunchTarget::kJobSet);
  request.words = {"out/Train GPT_2.v1.py"};
  EXPECT_EQ(complete(request, LaunchTarget::kJobSet)->name, "train-gpt-2");
  request.words = {"/bin/___"};
  EXPECT_EQ(complete(request, LaunchTarget::kJobSet)->name, "run");
}

TEST(Launch, RefusesContradictions) {
  auto request = request_of(LaunchTarget::kSlurm);
  request.min = 2;
  expect_refused(request, LaunchTarget::kSlurm, "--min and --max belong together");
  request.max = 1;
  expect_refused(request, LaunchTarget::kSlurm, "--min 2 is above --max 1");
  request.max = 4;
  expect_refused(request, LaunchTarget::kSlurm, "--hosts fixes the number of hosts");
  request = request_of(LaunchTarget::kSlurm);
  request.time = std::chrono::seconds(50);
  expect_refused(request, LaunchTarget::kSlurm, "the run would never train");
  request.time = std::chrono::seconds(51);
  EXPECT_TRUE(complete(request, LaunchTarget::kSlurm));
  expect_refused(request_of(LaunchTarget::kSsh), LaunchTarget::kSsh, "names of the hosts");
  request = elastic_request(LaunchTarget::kSsh);
  request.min = 4;
  expect_refused(request, LaunchTarget::kSsh, "--hosts names 3 hosts, and the run has 4 to 8");
  expect_refused(request_of(LaunchTarget::kJobSet, "a,b"), LaunchTarget::kJobSet, "pods without names");
  request = request_of(LaunchTarget::kKueue);
  request.queue = "";
  expect_refused(request, LaunchTarget::kKueue, "--queue");
  request = request_of(LaunchTarget::kJobSet);
  request.image = "";
  expect_refused(request, LaunchTarget::kJobSet, "--image");
  EXPECT_FALSE(read_hosts("a,b,a", request));
}

TEST(Launch, RefusesWhatASchedulerWouldMisread) {
  for (const char* text : {"a b", "a\n#SBATCH --uid=0", "a;id", "-x", "$(id)", "a\"b"}) {
    auto request = request_of(LaunchTarget::kSlurm);
    request.partition = text;
    expect_refused(request, LaunchTarget::kSlurm, "--partition");
    request.partition = "";
    request.name = text;
    expect_refused(request, LaunchTarget::kSlurm, "--name");
    auto pods = request_of(LaunchTarget::kKueue);
    pods.queue = text;
    expect_refused(pods, LaunchTarget::kKueue, "--queue");
    pods.queue = "q";
    pods.image = text;
    expect_refused(pods, LaunchTarget::kKueue, "--image");
    EXPECT_FALSE(read_hosts(std::string("h,") + text, request)) << text;
    EXPECT_FALSE(read_volume(std::string(text) + ":/data")) << text;
  }
  auto request = request_of(LaunchTarget::kJobSet);
  request.name = "Upper_case";
  expect_refused(request, LaunchTarget::kJobSet, "lower-case");
  request.name = std::string(41, 'a');
  expect_refused(request, LaunchTarget::kJobSet, "up to 40");
  request.name = "";
  request.words.push_back("\xff");
  expect_refused(request, LaunchTarget::kJobSet, "UTF-8");
  EXPECT_TRUE(complete(request, LaunchTarget::kSlurm));
  request = request_of(LaunchTarget::kJobSet);
  request.memory = "64 GB";
  expect_refused(request, LaunchTarget::kJobSet, "--memory-per-host");
  request = request_of(LaunchTarget::kSlurm);
  request.grace_s = 65516;
  expect_refused(request, LaunchTarget::kSlurm, "--grace");
  request = request_of(LaunchTarget::kJobSet);
  request.shoal = "x\n  - y";
  expect_refused(request, LaunchTarget::kJobSet, "--shoal");
  EXPECT_FALSE(read_volume("data:relative"));
}

}  // namespace
}  // namespace shoal::scheduler::cli
