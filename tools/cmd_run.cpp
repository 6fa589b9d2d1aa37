// SPDX-License-Identifier: Apache-2.0
// `shmbroker run -- CMD`: a group for a command and everything it starts, ended with them (spawn/supervisor.hpp). The
// exit status is the command's, 128 + n for signal n, and 125 to 127 for failures of our own, usage among them.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "base/text.hpp"
#include "proto/names.hpp"
#include "spawn/supervised_group.hpp"
#include "spawn/supervisor.hpp"
#include "tools/tool.hpp"

namespace shmb::tools {
namespace {

struct RunOptions {
  std::string socket, name, kill_rest, grace, master_addr;
  std::uint64_t limit = 0;
  int nprocs = 0, shards = 1, shard = 0, master_port = 0;
  bool kill_rest_given = false, prefix = true;
  std::vector<std::string> command;
};

// What the group says to the person at the terminal.
class Speaker final : public spawn::Reporter {
 public:
  explicit Speaker(spawn::SupervisedGroup& group) : group_(group) {}
  Result<void> enter_supervisor() override { return group_.enter_supervisor(); }
  void tree_gone() override { group_.tree_gone(); }
  std::vector<pid_t> bystanders() override { return group_.bystanders(); }
  void say(const std::string& line) override { complain(line); }
  std::vector<int> descriptors() override { return group_.descriptors(); }
  void progress(int ended, int all) override {
    if (all > 1 && ::isatty(STDERR_FILENO) != 0)
      complain(std::to_string(ended) + " of " + std::to_string(all) + " ranks have ended");
  }

 private:
  spawn::SupervisedGroup& group_;
};

int failed_ourselves(const std::string& sentence, int status = spawn::kExitFailed) {
  complain(sentence);
  return status;
}

// The options that make ranks of the command.
Result<void> make_ranks(const RunOptions& options, spawn::Plan& plan) {
  plan.nprocs = options.nprocs;
  plan.shards = options.shards;
  plan.shard = options.shard;
  plan.channels = plan.rank_variables = true;
  plan.stdio = options.prefix ? spawn::Stdio::prefix : spawn::Stdio::inherit;
  if (!options.master_addr.empty()) plan.master_address = options.master_addr;
  plan.master_port = static_cast<std::uint16_t>(options.master_port);
  plan.grace = spawn::kRankGrace;
  if (!options.grace.empty()) {
    auto grace = parse_duration(options.grace);
    if (!grace) return std::unexpected(grace.error());
    plan.grace = *grace;
  }
  return spawn::check(plan);
}

int run_command(const RunOptions& options) {
  if (!options.name.empty())
    if (auto name = names::check(options.name, "group name"); !name) return failed_ourselves(name.error().sentence);
  auto group = spawn::SupervisedGroup::create({options.socket, options.name, options.command.front(), options.limit});
  if (!group) return failed_ourselves(group.error().sentence);
  spawn::Plan plan;
  plan.command = options.command;
  plan.environment = (*group)->environment();
  if (options.kill_rest_given) {
    auto grace = options.kill_rest.empty() ? Result<std::int64_t>(spawn::kGrace) : parse_duration(options.kill_rest);
    if (!grace) return failed_ourselves(grace.error().sentence);
    if (*grace < 0) return failed_ourselves("--kill-rest needs a time that ends");
    plan.kill_rest = *grace;
  }
  if (options.nprocs != 0)
    if (auto ranks = make_ranks(options, plan); !ranks) return failed_ourselves(ranks.error().sentence);
  Speaker speaker(**group);
  const spawn::Outcome outcome = spawn::run_job(plan, speaker);
  if (!outcome.sentence.empty()) complain(outcome.sentence);
  return outcome.exit_status;
}

}  // namespace

Command add_run(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* verb = app.add_subcommand("run", "Run a command in a group that ends with its last process");
  verb->add_option("--name", options->name, "The group's name (default: made from the command)")->type_name("GROUP");
  add_size(*verb, "--limit", options->limit, "Most memory that the group may hold");
  CLI::Option* kill_rest =
      verb->add_option("--kill-rest", options->kill_rest,
                       "When the command ends, end what it left: SIGTERM, then SIGKILL after 5s or =DURATION")
          ->expected(0, 1)
          ->type_name("DURATION");
  CLI::Option* nprocs = verb->add_option("--nprocs", options->nprocs,
                                         "Run it so many times, as ranks with RANK, WORLD_SIZE, MASTER_ADDR ...")
                            ->type_name("N")
                            ->check(CLI::Range(1, spawn::kMostRanks));
  const auto of_ranks = [&](CLI::Option* option) { return option->needs(nprocs); };
  of_ranks(
      verb->add_option("--grace", options->grace, "After a rank has failed: from SIGTERM to SIGKILL (default 30s)"))
      ->type_name("DURATION");
  of_ranks(verb->add_option("--num-shards", options->shards, "Hosts that run as many ranks each (default 1)"))
      ->type_name("N");
  of_ranks(verb->add_option("--shard-id", options->shard, "Which of them this is, from 0"))->type_name("N");
  of_ranks(verb->add_option("--master-addr", options->master_addr, "MASTER_ADDR (default 127.0.0.1)"))
      ->type_name("HOST");
  of_ranks(verb->add_option("--master-port", options->master_port, "MASTER_PORT (default a free one)"))
      ->type_name("PORT")
      ->check(CLI::Range(1, 65535));
  of_ranks(
      verb->add_flag("--prefix,!--no-prefix", options->prefix, "\"[rank N] \" before each line of output, or not"));
  verb->add_option("--socket", options->socket, "The broker's socket, instead of looking for one")->type_name("PATH");
  verb->add_option("command", options->command, "-- COMMAND ARGUMENTS...")->required();
  verb->positionals_at_end();
  return {verb, [options, kill_rest] {
            options->kill_rest_given = kill_rest->count() > 0;
            return run_command(*options);
          }};
}

}  // namespace shmb::tools
