#include "scheduler/etcd/http_post.h"

#include <curl/curl.h>
#include <fcntl.h>

#include <cerrno>

#include "runtime/core/fd.h"
#include "runtime/core/library.h"

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
  Curl curl;
  const auto loaded = load_functions("libcurl.so.4", [&](const auto& find) {
    find(curl.global_init, "curl_global_init");
    find(curl.easy_init, "curl_easy_init");
    find(curl.easy_setopt, "curl_easy_setopt");
    find(curl.easy_perform, "curl_easy_perform");
    find(curl.easy_getinfo, "curl_easy_getinfo");
    find(curl.easy_strerror, "curl_easy_strerror");
    find(curl.easy_cleanup, "curl_easy_cleanup");
    find(curl.slist_append, "curl_slist_append");
    find(curl.slist_free_all, "curl_slist_free_all");
  });
  if (!loaded) {
    return fail(
        not_found("libcurl cannot be loaded: " + loaded.error().message()).with_hint("a store in etcd needs it: apt-get install libcurl4"));
  }
  if (curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return fail(internal("this host's libcurl cannot be used"));
  return curl;
}

std::size_t take(char* data, std::size_t, std::size_t size, void* to) {
  auto& body = *static_cast<std::string*>(to);
  if (body.size() + size > HttpPost::kMaxReply) return 0;
  body.append(data, size);
  return size;
}

Result<void> readable(const std::string& path) {
  if (path.empty() || Fd(open(path.c_str(), O_RDONLY | O_CLOEXEC))) return {};
  return fail(from_errno(errno, path));
}

class CurlPost final : public HttpPost {
 public:
  CurlPost(const Curl& curl, CURL* handle, const TlsFiles& tls) : curl_(curl), handle_(handle), secret_(!tls.authority.empty()) {
    headers_ = curl_.slist_append(curl_.slist_append(nullptr, "Content-Type: application/json"), "Expect:");
    curl_.easy_setopt(handle_, CURLOPT_HTTPHEADER, headers_);
    curl_.easy_setopt(handle_, CURLOPT_NOSIGNAL, 1L);
    curl_.easy_setopt(handle_, CURLOPT_PROXY, "");
    curl_.easy_setopt(handle_, CURLOPT_PROTOCOLS_STR, secret_ ? "https" : "http");
    curl_.easy_setopt(handle_, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    curl_.easy_setopt(handle_, CURLOPT_ERRORBUFFER, detail_);
    curl_.easy_setopt(handle_, CURLOPT_TCP_NODELAY, 1L);
    curl_.easy_setopt(handle_, CURLOPT_WRITEFUNCTION, take);
    if (secret_) trust(tls);
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
    detail_[0] = 0;
    if (const CURLcode code = curl_.easy_perform(handle_); code != CURLE_OK) return fail(error_of(url, code));
    curl_.easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &reply.status);
    return reply;
  }

 private:
  void trust(const TlsFiles& tls) {
    curl_.easy_setopt(handle_, CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
    curl_.easy_setopt(handle_, CURLOPT_SSL_VERIFYPEER, 1L);
    curl_.easy_setopt(handle_, CURLOPT_SSL_VERIFYHOST, 2L);
    curl_.easy_setopt(handle_, CURLOPT_CAINFO, tls.authority.c_str());
    curl_.easy_setopt(handle_, CURLOPT_CA_CACHE_TIMEOUT, 0L);  // reads the authorities anew, so that a withdrawn one is not trusted
    curl_.easy_setopt(handle_, CURLOPT_CAPATH, nullptr);       // the system's authorities are not trusted
    if (tls.certificate.empty()) return;
    curl_.easy_setopt(handle_, CURLOPT_SSLCERT, tls.certificate.c_str());
    curl_.easy_setopt(handle_, CURLOPT_SSLKEY, tls.key.c_str());
    curl_.easy_setopt(handle_, CURLOPT_KEYPASSWD, "");  // no prompt for a pass phrase
  }

  // The only conversion of libcurl's codes to errors. In TLS 1.3 the refusal of a client's certificate arrives after the handshake, with
  // the first bytes that the client reads, or is lost.
  Error error_of(const std::string& url, CURLcode code) const {
    auto e = unavailable(url + ": " + (detail_[0] != 0 ? detail_ : curl_.easy_strerror(code)));
    if (!secret_) return code == CURLE_GOT_NOTHING ? std::move(e).with_hint("use etcds:// where etcd speaks TLS") : e;
    switch (code) {
      case CURLE_PEER_FAILED_VERIFICATION:
        return std::move(e)
            .with_reason("CertificateRefused")
            .with_hint(
                "--store-ca-file has to name the authority that signed etcd's certificate, and that certificate the host in --store; "
                "compare the clocks of both hosts");
      case CURLE_SSL_CERTPROBLEM:
      case CURLE_SSL_CACERT_BADFILE:
        return std::move(e)
            .with_reason("CertificateRefused")
            .with_hint(
                "--store-ca-file, --store-cert-file and --store-key-file are in PEM; the key is the certificate's and has no pass phrase");
      case CURLE_SSL_CONNECT_ERROR:
      case CURLE_SEND_ERROR:
      case CURLE_RECV_ERROR:
      case CURLE_GOT_NOTHING:
        return std::move(e).with_hint(
            "either etcd speaks no TLS there, or it does not trust the certificate in --store-cert-file: that is one "
            "for clients, of etcd's --trusted-ca-file");
      default:
        return e;
    }
  }

  const Curl curl_;
  CURL* const handle_;
  const bool secret_;
  char detail_[CURL_ERROR_SIZE] = {};
  curl_slist* headers_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<HttpPost>> HttpPost::make(const TlsFiles& tls) {
  for (const auto* path : {&tls.authority, &tls.certificate, &tls.key}) SHOAL_OK(readable(*path));
  static const Result<Curl> curl = load();  // never unloaded: other threads may be in it
  if (!curl) return fail(curl.error());
  CURL* const handle = curl->easy_init();
  if (handle == nullptr) return fail(resource_exhausted("no memory for an HTTP client"));
  return std::unique_ptr<HttpPost>(std::make_unique<CurlPost>(*curl, handle, tls));
}

}  // namespace shoal::scheduler::etcd
