#include "scheduler/cli/configuration/configuration.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace shoal::scheduler::cli {
namespace {

namespace fs = std::filesystem;

std::string refusal(const std::string& text) {
  const auto keys = parse_configuration(text, "shoal.toml");
  return keys ? "" : keys.error().to_string();
}

TEST(Configuration, KeysAreVariablesAndOptionsOfSections) {
  const auto keys = parse_configuration(
      "# comment\ntransport = \"tcp\"\ntimeout=120 # seconds\nrecord = false\naddress = \"a:1,b:2\"\n\n[run]\nnproc = 4\nwait = true\n"
      "[launch.slurm]\nresource = [\"a=1\", \"b=2\"]\n",
      "f");
  ASSERT_TRUE(keys) << keys.error().to_string();
  ASSERT_EQ(keys->size(), 7u);
  EXPECT_EQ((*keys)[0].name, "SHOAL_TRANSPORT");
  EXPECT_EQ((*keys)[0].values, std::vector<std::string>{"tcp"});
  EXPECT_EQ((*keys)[1].values, std::vector<std::string>{"120"});
  EXPECT_EQ((*keys)[2].values, std::vector<std::string>{"0"});
  EXPECT_EQ((*keys)[3].values, std::vector<std::string>{"a:1,b:2"});
  EXPECT_EQ((*keys)[4].verb, std::vector<std::string>{"run"});
  EXPECT_EQ((*keys)[4].name, "nproc");
  EXPECT_EQ((*keys)[5].values, std::vector<std::string>{"true"});
  EXPECT_EQ((*keys)[6].verb, (std::vector<std::string>{"launch", "slurm"}));
  EXPECT_EQ((*keys)[6].values, (std::vector<std::string>{"a=1", "b=2"}));
}

TEST(Configuration, AnUnknownKeyIsRefusedWithTheOneThatMayBeMeant) {
  EXPECT_NE(refusal("transprot = \"tcp\"\n").find("did you mean `transport`?"), std::string::npos);
  EXPECT_NE(refusal("nothing here\n").find("is unknown"), std::string::npos);
  EXPECT_NE(refusal("worker_id = 3\n").find("is unknown"), std::string::npos) << "a variable that Shoal sets itself";
}

TEST(Configuration, SecretsListsAndTornTextsAreRefused) {
  EXPECT_NE(refusal("token = \"abc\"\n").find("secret"), std::string::npos);
  EXPECT_NE(refusal("transport = [\"tcp\", \"tls\"]\n").find("one value"), std::string::npos);
  EXPECT_NE(refusal("address = \"a#b\"\n").find("#"), std::string::npos);
  EXPECT_NE(refusal("timeout = 1\ntimeout = 2\n").find("once"), std::string::npos);
}

struct Folders : testing::Test {
  Folders() : root(fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(root);
    fs::create_directories(root / "project" / "inner");
    fs::create_directories(root / "config" / "shoal");
  }
  ~Folders() override { fs::remove_all(root); }

  void write(const std::string& path, const std::string& text) const { std::ofstream(root / path) << text; }
  Result<Configuration> find(const std::string& config = "") const {
    return find_configuration(
        [&](std::string_view name) {
          return name == "XDG_CONFIG_HOME" ? (root / "config").string() : name == "SHOAL_CONFIG" ? config : std::string();
        },
        root / "project" / "inner");
  }

  fs::path root;
};

TEST_F(Folders, TheProjectsFileCountsMoreThanTheUsers) {
  write("project/shoal.toml", "timeout = 1\n[run]\nnproc = 2\n");
  write("config/shoal/config.toml", "timeout = 3\nrecord = 0\n[run]\nnproc = 4\ngrace = 5\n");
  const auto found = find();
  ASSERT_TRUE(found) << found.error().to_string();
  std::string all;
  for (const auto& key : found->settings) all += key.name + "=" + key.values[0] + " ";
  EXPECT_EQ(all, "SHOAL_TIMEOUT=1 nproc=2 SHOAL_RECORD=0 grace=5 ");
  EXPECT_EQ(found->files, (std::vector<std::string>{root / "project/shoal.toml", root / "config/shoal/config.toml"}));
}

TEST_F(Folders, TheNearestFileOfTheFoldersAboveIsRead) {
  write("project/shoal.toml", "timeout = 1\n");
  write("project/inner/shoal.toml", "record = 0\n");
  ASSERT_EQ(find()->settings.size(), 1u);
  EXPECT_EQ(find()->settings[0].name, "SHOAL_RECORD");
}

TEST_F(Folders, AVariableNamesTheOnlyFileOrNone) {
  write("project/shoal.toml", "timeout = 1\n");
  write("other.toml", "timeout = 2\n");
  EXPECT_EQ(find(root / "other.toml")->settings[0].values[0], "2");
  EXPECT_TRUE(find("none")->settings.empty());
  EXPECT_FALSE(find(root / "missing.toml"));
}

TEST_F(Folders, AFileThatOthersCanWriteIsLeftOutWithAWarning) {
  write("project/shoal.toml", "timeout = 1\n");
  ASSERT_EQ(chmod((root / "project/shoal.toml").c_str(), 0666), 0);
  const auto found = find();
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->settings.empty());
  ASSERT_EQ(found->warnings.size(), 1u);
  EXPECT_NE(found->warnings[0].find("other users can write it"), std::string::npos);
}

TEST_F(Folders, AWorkingDirectoryChoosesNoProgramAndNoCluster) {
  for (const char* key :
       {"python", "binary", "nccl_library", "address", "token_file", "ca_fingerprint", "home", "run_folder", "store_in_clear_text"}) {
    write("project/shoal.toml", std::string(key) + " = \"x\"\n");
    const auto found = find();
    ASSERT_FALSE(found) << key;
    EXPECT_NE(found.error().to_string().find(std::string("the key '") + key + "' chooses a program"), std::string::npos);
    EXPECT_EQ(find(root / "project/shoal.toml")->settings.size(), 1u) << "SHOAL_CONFIG names it";
    write("config/shoal/config.toml", std::string(key) + " = \"x\"\n");
    fs::remove(root / "project/shoal.toml");
    EXPECT_EQ(find()->settings.size(), 1u);
  }
}

TEST_F(Folders, ASectionOfAWorkingDirectoryChoosesNoProgramAndNoHosts) {
  for (const char* section :
       {"[launch.ssh]\nshoal = \"./evil\"", "[launch.kueue]\nimage = \"evil\"", "[run]\nmaster-addr = \"evil\"",
        "[launch.ssh]\nhosts = \"evil\"", "[submit]\nruntime-env-json = \"{}\"", "[start]\nstore = \"evil\"",
        "[dashboard]\nexport = \"../.bashrc\"", "[launch.ssh]\nenv = [\"A=1\", \"LD_PRELOAD=./evil.so\"]",
        "[launch.ssh]\nenv = \"SHOAL_PYTHON=./evil\"", "[run]\nrun-folder = \"../docs\"",
        "[start]\nobject-spilling-directory = \"../docs\"", "[start]\nstore-in-clear-text = true", "[start]\nstore-ca-file = \"evil\"",
        "[start]\ndashboard-host = \"0.0.0.0\"", "[start]\nauthority = \"evil\""}) {
    write("project/shoal.toml", section);
    const auto found = find();
    ASSERT_FALSE(found) << section;
    EXPECT_NE(found.error().to_string().find("] chooses a program, a cluster or a file to write"), std::string::npos)
        << found.error().to_string();
    EXPECT_EQ(find(root / "project/shoal.toml")->settings.size(), 1u) << "SHOAL_CONFIG names it";
  }
  write("project/shoal.toml", "[launch.ssh]\nenv = [\"A=1\", \"SHOAL_FSDP=1\"]\ngrace = 5\n");
  EXPECT_EQ(find()->settings.size(), 2u);
}

TEST_F(Folders, VariablesOfAWorkingDirectoryChooseNoProgram) {
  for (const char* name : {"SHOAL_CONFIG",
                           "SHOAL_TOKEN",
                           "SHOAL_RUN_FOLDER",
                           "HOME",
                           "XDG_CONFIG_HOME",
                           "GCONV_PATH",
                           "SHELLOPTS",
                           "IFS",
                           "BASH_FUNC_ls%%",
                           "GIT_SSH_COMMAND",
                           "SSH_ASKPASS",
                           "NODE_OPTIONS",
                           "PERL5OPT",
                           "RUBYOPT",
                           "HTTPS_PROXY",
                           "http_proxy",
                           "CUDA_INJECTION64_PATH",
                           "NCCL_NET_PLUGIN",
                           "PIP_INDEX_URL",
                           "SSL_CERT_FILE"}) {
    write("project/shoal.toml", std::string("[launch.ssh]\nenv = \"") + name + "=./evil\"\n");
    EXPECT_FALSE(find()) << name;
  }
  write("project/shoal.toml", "[launch.ssh]\nenv = [\"CUDA_VISIBLE_DEVICES=0\", \"NCCL_DEBUG=INFO\", \"OMP_NUM_THREADS=1\"]\n");
  EXPECT_TRUE(find());
}

TEST_F(Folders, ALinkCountsAsTheUsersFileAlone) {
  write("other.toml", "timeout = 1\n");
  fs::create_symlink(root / "other.toml", root / "config/shoal/config.toml");
  EXPECT_EQ(find()->settings.size(), 1u);
  fs::create_symlink(root / "other.toml", root / "project/shoal.toml");
  ASSERT_EQ(find()->warnings.size(), 1u);
  EXPECT_NE(find()->warnings[0].find("shoal.toml is left out: it is a link"), std::string::npos);
}

TEST(Configuration, AGroupMayWriteOnlyIfItIsTheUsersOwn) {
  struct stat file {};
  file.st_uid = 1000;
  file.st_gid = 1000;
  file.st_mode = S_IFREG | 0664;
  EXPECT_EQ(distrust(file, 1000, 1000), "");
  EXPECT_EQ(distrust(file, 1000, 100), "other users can write it");
  EXPECT_NE(distrust(file, 1001, 1000), "");
  file.st_gid = 100;
  EXPECT_EQ(distrust(file, 1000, 100), "other users can write it");
  file.st_mode = S_IFREG | 0644;
  EXPECT_EQ(distrust(file, 1000, 100), "");
}

}  // namespace
}  // namespace shoal::scheduler::cli
