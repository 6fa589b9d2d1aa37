// SPDX-License-Identifier: Apache-2.0
// Finds the driver at run time only: dlopen of the versioned name (the unversioned one may be the toolkit's stub) and
// cuGetProcAddress with the version of the ABI that driver.hpp declares.
#include "tests/gpu/driver.hpp"

#include <dlfcn.h>

#include "tests/gpu/report.hpp"

namespace shmb::facts {

Driver cu;

std::string load_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "no driver: libcuda.so.1 cannot be loaded";
  using GetProc = Code (*)(const char*, void**, int, std::uint64_t, int*);
  const auto get = reinterpret_cast<GetProc>(dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) return "driver too old: no cuGetProcAddress_v2 (12.0)";
#define SHMB_FACTS_FIND(member, symbol, version, parameters)                                        \
  {                                                                                                 \
    void* found = nullptr;                                                                          \
    int status = 0;                                                                                 \
    if (get(#symbol, &found, version, 0, &status) != kSuccess || found == nullptr)                  \
      return "driver has no " #symbol " of version " #version ", status " + std::to_string(status); \
    cu.member = reinterpret_cast<decltype(cu.member)>(found);                                       \
  }
  SHMB_FACTS_DRIVER(SHMB_FACTS_FIND)
#undef SHMB_FACTS_FIND
#define SHMB_FACTS_TRY(member, symbol, version, parameters)                     \
  {                                                                             \
    void* found = nullptr;                                                      \
    int status = 0;                                                             \
    if (get(#symbol, &found, version, 0, &status) != kSuccess) found = nullptr; \
    cu.member = reinterpret_cast<decltype(cu.member)>(found);                   \
  }
  SHMB_FACTS_OPTIONAL(SHMB_FACTS_TRY)
#undef SHMB_FACTS_TRY
  return {};
}

bool driver_is_fake() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return library != nullptr && dlsym(library, "fakecuda_audit") != nullptr;
}

std::string code_text(Code code) {
  const char* name = nullptr;
  if (cu.error_name != nullptr) cu.error_name(code, &name);
  return std::to_string(code) + " " + (name != nullptr ? name : "?");
}

void must(Code code, const char* call) {
  if (code != kSuccess) fail("%s gave %s", call, code_text(code).c_str());
}

}  // namespace shmb::facts
