// SPDX-License-Identifier: Apache-2.0
// See plan.hpp. Writing and reading name every field once, in one order.
#include "spawn/ranks/plan.hpp"

#include "base/text.hpp"
#include "proto/names.hpp"
#include "spawn/ranks/bytes.hpp"

namespace shmb::spawn {

std::string Plan::encode() const {
  Packer out;
  out.number(method).number(nprocs).number(shards).number(shard);
  out.number<std::uint8_t>(channels).number<std::uint8_t>(rank_variables).number<std::uint8_t>(group);
  out.text(program).texts(command).number<std::uint64_t>(environment.size());
  for (const auto& [name, value] : environment) out.text(name).text(value);
  out.text(directory).text(function).text(arguments).text(master_address).number(master_port);
  out.number(voluntary).number(grace).number(start_timeout).number(kill_rest.value_or(-1));
  out.number(stdio).text(stdio_path).text(socket).text(group_name).number(group_limit).number(parent);
  out.number(parent_epoch).number(parent_session);
  return out.take();
}

Result<Plan> Plan::decode(std::string_view bytes) {
  Unpacker in(bytes);
  Plan plan;
  plan.method = in.number<Method>();
  plan.nprocs = in.number<std::int32_t>();
  plan.shards = in.number<std::int32_t>();
  plan.shard = in.number<std::int32_t>();
  plan.channels = in.flag();
  plan.rank_variables = in.flag();
  plan.group = in.flag();
  plan.program = in.text();
  plan.command = in.texts();
  for (auto left = in.number<std::uint64_t>(); left > 0 && in.whole(); --left) {
    std::string name = in.text();
    plan.environment.emplace_back(std::move(name), in.text());
  }
  plan.directory = in.text();
  plan.function = in.text();
  plan.arguments = in.text();
  plan.master_address = in.text();
  plan.master_port = in.number<std::uint16_t>();
  plan.voluntary = in.number<std::int64_t>();
  plan.grace = in.number<std::int64_t>();
  plan.start_timeout = in.number<std::int64_t>();
  if (const auto rest = in.number<std::int64_t>(); rest >= 0) plan.kill_rest = rest;
  plan.stdio = in.number<Stdio>();
  plan.stdio_path = in.text();
  plan.socket = in.text();
  plan.group_name = in.text();
  plan.group_limit = in.number<std::uint64_t>();
  plan.parent = in.number<pid_t>();
  plan.parent_epoch = in.number<std::uint64_t>();
  plan.parent_session = in.number<std::uint64_t>();
  if (!in.done()) return error(Status::invalid, "the plan is of another version of the library");
  SHMB_TRY_VOID(check(plan));
  return plan;
}

Result<void> check(const Plan& plan) {
  if (plan.nprocs < 1 || plan.nprocs > kMostRanks)
    return error(Status::invalid,
                 "nprocs is " + std::to_string(plan.nprocs) + ": it must be 1 to " + std::to_string(kMostRanks));
  if (plan.shards < 1 || plan.shard < 0 || plan.shard >= plan.shards)
    return error(Status::invalid, "shard " + std::to_string(plan.shard) + " of " + std::to_string(plan.shards) +
                                      ": shards count from 0, and there must be one at least");
  if (plan.shards > INT32_MAX / plan.nprocs) return error(Status::invalid, "shards times nprocs is too large a number");
  if (plan.shards > 1 && plan.rank_variables && plan.master_port == 0)
    return error(Status::invalid,
                 "ranks on several hosts meet at one port: give the same MASTER_PORT to every shard, as nobody can "
                 "choose a free one for all");
  if (plan.method > Method::command) return error(Status::invalid, "there is no such start method");
  if (plan.stdio > Stdio::prefix) return error(Status::invalid, "there is no such way for output");
  if (plan.stdio == Stdio::files && plan.stdio_path.empty())
    return error(Status::invalid, "output to files needs a path: PATH.RANK.out and PATH.RANK.err are made");
  if (plan.method == Method::fork) {
    if (plan.entry == nullptr) return error(Status::invalid, "the start method fork needs a function to call");
  } else if (plan.command.empty() || plan.command.front().empty()) {
    return error(Status::invalid, "no command was given");
  }
  if ((plan.method == Method::spawn || plan.method == Method::forkserver) && plan.function.empty())
    return error(Status::invalid, "no function was named for the ranks to run");
  if (plan.arguments.size() > kMostArguments / static_cast<std::size_t>(plan.nprocs))
    return error(Status::limit, "arguments of " + std::to_string(plan.arguments.size()) + " bytes for " +
                                    std::to_string(plan.nprocs) + " ranks: all copies together may have " +
                                    std::to_string(kMostArguments) + " bytes; pass large things as regions");
  if (plan.voluntary < 0 || plan.grace < 0 || plan.start_timeout <= 0)
    return error(Status::invalid, "times of grace must not be negative, and the time to start must be above 0");
  for (const auto& [name, value] : plan.environment)
    if (name.empty() || name.find_first_of(std::string_view("=\0", 2)) != name.npos || value.find('\0') != value.npos)
      return error(Status::invalid, "an environment variable cannot be called " + quoted(name));
  if (!plan.group_name.empty()) SHMB_TRY_VOID(names::check(plan.group_name, "group name"));
  return {};
}

}  // namespace shmb::spawn
