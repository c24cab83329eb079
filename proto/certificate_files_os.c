#include "proto/certificate_files_os.h"

int certificate_files_read(struct certificate_files *ret, const struct certificate_paths *paths,
                           char error[CERTIFICATE_ERROR_SIZE])
{
    *ret = (struct certificate_files){.paths = *paths};
    int r = secret_read_pem(&ret->cert, "the certificate", paths->cert, SECRET_FILE_ANY, error);
    if (r == 0)
        r = secret_read_pem(&ret->key, "the private key", paths->key, SECRET_FILE_PRIVATE, error);
    if (r == 0 && paths->ca)
        r = secret_read_pem(&ret->ca, "the certificates of CAs", paths->ca, SECRET_FILE_ANY, error);
    if (r < 0)
        certificate_files_finish(ret);
    return r;
}

void certificate_files_finish(struct certificate_files *f)
{
    secret_finish(&f->cert);
    secret_finish(&f->key);
    secret_finish(&f->ca);
}
