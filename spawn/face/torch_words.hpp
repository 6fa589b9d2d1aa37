// SPDX-License-Identifier: Apache-2.0
// Sentences that programs written for torch.distributed.rpc look for. They stand in one place, so that a Python package
// can take them over. All functions only make text; they may be called from any thread.
#if __cplusplus < 202002L
#error "shmbroker/remote.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker_remote.h)"
#elif !defined(SHMBROKER_TORCH_WORDS_HPP)
#define SHMBROKER_TORCH_WORDS_HPP

#include <cstdint>
#include <string>
#include <string_view>

namespace shmbroker::torch_words {

inline constexpr const char* kNotInitialized = "RPC has not been initialized: call shmbroker::remote::init first";
inline constexpr const char* kCannotPickle =
    "Can not pickle rref: a reference can only be packed as an argument or result of a remote call";

/// A reference as torch prints it. `number` 0: the broker does not know this value of the worker's own yet. Like all
/// functions here it throws std::bad_alloc only.
inline std::string reference_text(bool is_owner, int creator, std::uint64_t number, int fork_creator,
                                  std::uint64_t fork) {
  const auto id = [](int by, std::uint64_t local) {
    return "GloballyUniqueId(created_on=" + std::to_string(by) + ", local_id=" + std::to_string(local) + ")";
  };
  if (number == 0) return "OwnerRRef(local)";
  if (is_owner) return "OwnerRRef(" + id(creator, number) + ")";
  return "UserRRef(RRefId = " + id(creator, number) + ", ForkId = " + id(fork_creator, fork) + ")";
}

/// `reference` and `fork` are the texts of two numbers, `user` and `owner` the descriptions of two workers. Throws
/// std::bad_alloc.
inline std::string not_the_owner(const std::string& reference, const std::string& fork, const std::string& user,
                                 const std::string& owner) {
  return "For UserRRef(rref_id=" + reference + ", fork_id=" + fork + "), can't call shmb_reference_local on user " +
         user + ". Call it on owner " + owner + ", or use shmb_reference_fetch";
}

/// `use`: what was to be done with the reference, "fork" or a function of the C interface. Throws std::bad_alloc.
inline std::string used_after_deletion(const std::string& reference, std::string_view use) {
  return "reference " + reference + ": Cannot call " + std::string(use) + (use == "fork" ? " an UserRRef" : " on it") +
         " after deletion: its worker was shut down";
}

/// The creation of a value failed; and the same at its deadline. Throws std::bad_alloc.
inline std::string creation_failed(const std::string& reference, const std::string& why) {
  return "RRef creation of " + reference + ": " + why;
}

/// `within`: the text of the time that it had. Throws std::bad_alloc.
inline std::string creation_timed_out(const std::string& reference, const std::string& function,
                                      const std::string& worker, const std::string& within) {
  return "RRef creation of " + reference + " via shmb_remote_create timed out: \"" + function + "\" at " + worker +
         " took more than " + within + "; the reference has failed for good, for every worker";
}

/// `values`: those to which others hold references at a shutdown. Throws std::bad_alloc.
inline std::string leaking(std::uint32_t values) {
  return "Leaking RRef: others still hold references to " + std::to_string(values) +
         " values of this worker; let them go before shutdown, or have it ignore leaks";
}

}  // namespace shmbroker::torch_words

#endif
