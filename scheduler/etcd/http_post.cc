#include "scheduler/etcd/http_post.h"

#include <curl/curl.h>
#include <dlfcn.h>

namespace shoal::scheduler::etcd {

namespace {

struct Curl {
  decltype(&::curl_global_init) global_init = nullptr;
  decltype(&::curl_easy_init) easy_init = nullptr;
  decltype(&::curl_easy_setopt) easy_setopt = nullptr;
  decltype(&::curl_easy_perform) easy_perform = nullptr;
  decltype(&::curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&::curl_easy_strerror) easy_strerror = nullptr;
  decltype(&::curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&::curl_slist_append) slist_append = nullptr;
  decltype(&::curl_slist_free_all) slist_free_all = nullptr;
};

Result<Curl> load() {
  void* const library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return fail(
        not_found(std::string("libcurl cannot be loaded: ") + dlerror()).with_hint("a store in etcd needs it: apt-get install libcurl4"));
  }
  Curl curl;
  bool all = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    all = all && function != nullptr;
  };
  find(curl.global_init, "curl_global_init");
  find(curl.easy_init, "curl_easy_init");
  find(curl.easy_setopt, "curl_easy_setopt");
  find(curl.easy_perform, "curl_easy_perform");
  find(curl.easy_getinfo, "curl_easy_getinfo");
  find(curl.easy_strerror, "curl_easy_strerror");
  find(curl.easy_cleanup, "curl_easy_cleanup");
  find(curl.slist_append, "curl_slist_append");
  find(curl.slist_free_all, "curl_slist_free_all");
  if (!all || curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return fail(internal("libcurl of this host cannot be used"));
  return curl;
}

std::size_t take(char* data, std::size_t, std::size_t size, void* to) {
  auto& body = *static_cast<std::string*>(to);
  if (body.size() + size > HttpPost::kMaxReply) return 0;
  body.append(data, size);
  return size;
}

class CurlPost final : public HttpPost {
 public:
  CurlPost(const Curl& curl, CURL* handle) : curl_(curl), handle_(handle) {
    headers_ = curl_.slist_append(curl_.slist_append(nullptr, "Content-Type: application/json"), "Expect:");
    curl_.easy_setopt(handle_, CURLOPT_HTTPHEADER, headers_);
    curl_.easy_setopt(handle_, CURLOPT_NOSIGNAL, 1L);
    curl_.easy_setopt(handle_, CURLOPT_PROXY, "");
    curl_.easy_setopt(handle_, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_.easy_setopt(handle_, CURLOPT_TCP_NODELAY, 1L);
    curl_.easy_setopt(handle_, CURLOPT_WRITEFUNCTION, take);
  }
  ~CurlPost() override {
    curl_.easy_cleanup(handle_);
    curl_.slist_free_all(headers_);
  }

  Result<Reply> post(const std::string& url, const std::string& body, runtime::Duration timeout) override {
    Reply reply;
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
    curl_.easy_setopt(handle_, CURLOPT_URL, url.c_str());
    curl_.easy_setopt(handle_, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    curl_.easy_setopt(handle_, CURLOPT_POSTFIELDS, body.data());
    curl_.easy_setopt(handle_, CURLOPT_TIMEOUT_MS, static_cast<long>(ms));
    curl_.easy_setopt(handle_, CURLOPT_WRITEDATA, &reply.body);
    if (const CURLcode code = curl_.easy_perform(handle_); code != CURLE_OK) {
      return fail(unavailable(url + ": " + curl_.easy_strerror(code)));
    }
    curl_.easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &reply.status);
    return reply;
  }

 private:
  const Curl curl_;
  CURL* const handle_;
  curl_slist* headers_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<HttpPost>> HttpPost::make() {
  static const Result<Curl> curl = load();  // for good: other threads may be in it
  if (!curl) return fail(curl.error());
  CURL* const handle = curl->easy_init();
  if (handle == nullptr) return fail(resource_exhausted("no memory for an HTTP client"));
  return std::unique_ptr<HttpPost>(std::make_unique<CurlPost>(*curl, handle));
}

}  // namespace shoal::scheduler::etcd
