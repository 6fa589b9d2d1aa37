// SPDX-License-Identifier: Apache-2.0
// `shmbroker run -- CMD`: a group for a command and everything it starts, which ends with them
// (spawn/ranks/supervisor.hpp). The exit status is the command's, 128 + n for signal n, or 125 to 127 for failures of
// `run` itself, including usage errors.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>
#include <optional>

#include "base/result.hpp"
#include "base/text.hpp"
#include "proto/names.hpp"
#include "spawn/ranks/supervised_group.hpp"
#include "spawn/ranks/supervisor.hpp"
#include "tools/tool.hpp"

namespace shmb::tools {
namespace {

struct RunOptions {
  std::string socket, name, kill_rest, grace, master_addr, init_method;
  std::uint64_t limit = 0;
  int nprocs = 0, shards = 1, shard = 0, master_port = 0;
  bool kill_rest_given = false, limit_given = false, prefix = true;
  std::vector<std::string> command;
};

// The messages of the group to the person at the terminal.
class Speaker final : public spawn::Reporter {
 public:
  explicit Speaker(spawn::SupervisedGroup& group) : group_(group) {}
  Result<void> enter_supervisor() override { return group_.enter_supervisor(); }
  void tree_gone() override { group_.tree_gone(); }
  std::vector<pid_t> bystanders() override { return group_.bystanders(); }
  std::string line(const std::string& sentence) override { return complaint(sentence); }
  std::vector<int> descriptors() override { return group_.descriptors(); }
  std::string progress(int ended, int all) override {
    if (all <= 1 || !is_terminal(STDERR_FILENO)) return {};
    return complaint(std::to_string(ended) + " of " + std::to_string(all) + " ranks have ended");
  }

 private:
  spawn::SupervisedGroup& group_;
};

int failed_ourselves(const std::string& sentence, int status = spawn::kExitFailed) {
  complain(sentence);
  return status;
}

// "tcp://HOST:PORT", as programs of torch.distributed write it.
Result<void> read_init_method(std::string_view text, spawn::Plan& plan) {
  constexpr std::string_view kScheme = "tcp://";
  const std::size_t colon = text.rfind(':');
  const auto host = text.starts_with(kScheme) && colon > kScheme.size()
                        ? text.substr(kScheme.size(), colon - kScheme.size())
                        : std::string_view();
  const char* const end = text.data() + text.size();
  if (!host.empty()) {
    const auto port = std::from_chars(text.data() + colon + 1, end, plan.master_port);
    plan.master_address = host;
    if (port.ec == std::errc() && port.ptr == end && plan.master_port != 0) return {};
  }
  return error(Status::invalid,
               "--init-method " + shmb::quoted(text) + ": it must be tcp://HOST:PORT with a port from 1 to 65535");
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
  if (!options.init_method.empty())
    if (auto read = read_init_method(options.init_method, plan); !read) return read;
  plan.grace = spawn::kRankGrace;
  if (!options.grace.empty()) {
    SHMB_TRY(grace, parse_duration(options.grace));
    plan.grace = grace;
  }
  return spawn::check(plan);
}

int run_command(const RunOptions& options) {
  if (options.limit_given && options.limit == 0)
    return failed_ourselves(
        "--limit 0 leaves the group no memory: give 64M, 8G or a number of bytes, or leave --limit out for the limit "
        "of the configuration");
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
  CLI::Option* limit = add_size(*verb, "--limit", options->limit, "Most memory that the group may hold");
  CLI::Option* kill_rest =
      verb->add_option("--kill-rest", options->kill_rest,
                       "When the command ends, end what it left: SIGTERM, then SIGKILL after 5s or =DURATION")
          ->expected(0, 1)
          ->type_name("DURATION");
  CLI::Option* nprocs = verb->add_option("--nprocs", options->nprocs,
                                         "Run it N times at once, as ranks with RANK, WORLD_SIZE, MASTER_ADDR ...")
                            ->type_name("N")
                            ->check(CLI::Range(1, spawn::kMostRanks));
  const auto of_ranks = [&](CLI::Option* option) { return option->needs(nprocs); };
  of_ranks(
      verb->add_option("--grace", options->grace, "After a rank has failed: from SIGTERM to SIGKILL (default 30s)"))
      ->type_name("DURATION");
  of_ranks(verb->add_option("--num-shards", options->shards, "The number of hosts with as many ranks each (default 1)"))
      ->type_name("N");
  of_ranks(verb->add_option("--shard-id", options->shard, "The number of this host, from 0"))->type_name("N");
  CLI::Option* address =
      of_ranks(verb->add_option("--master-addr", options->master_addr, "MASTER_ADDR (default 127.0.0.1)"))
          ->type_name("HOST");
  CLI::Option* port =
      of_ranks(verb->add_option("--master-port", options->master_port, "MASTER_PORT (default a free one)"))
          ->type_name("PORT")
          ->check(CLI::Range(1, 65535));
  of_ranks(verb->add_option("--init-method", options->init_method, "Both at once, as tcp://HOST:PORT"))
      ->type_name("URL")
      ->excludes(address)
      ->excludes(port);
  of_ranks(
      verb->add_flag("--prefix,!--no-prefix", options->prefix, "\"[rank N] \" before each line of output, or not"));
  verb->add_option("--socket", options->socket, "The broker's socket, instead of looking for one")->type_name("PATH");
  verb->add_option("command", options->command, "-- COMMAND ARGUMENTS...")->required();
  verb->positionals_at_end();
  return {verb, [options, kill_rest, limit] {
            options->kill_rest_given = kill_rest->count() > 0;
            options->limit_given = limit->count() > 0;
            return run_command(*options);
          }};
}

}  // namespace shmb::tools
