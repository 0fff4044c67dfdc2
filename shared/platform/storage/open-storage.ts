/** Opens the storage that the settings name. */
import type { Config } from '../../config/config.ts'
import { openDisk } from './disk.ts'
import type { Storage } from './storage.ts'

/**
 * `file:<folder>` or `s3://bucket/prefix?region=…&endpoint=…&forcePathStyle=true&timeout=<seconds>`, where the
 * service is to encrypt objects with `&sse=AES256` or `&sse=aws:kms&sseKmsKeyId=…`, and callers fetch what is
 * exported from it themselves with `&presigned=true`.
 */
export async function openStorage({
  storageUrl,
  maxUploadBytes,
}: Pick<Config, 'storageUrl' | 'maxUploadBytes'>): Promise<Storage> {
  if (storageUrl.startsWith('file:')) return openDisk(storageUrl.slice('file:'.length))
  // Loading the client takes 0.3 s and 30 MB, which a folder need not pay.
  const { openBucket } = await import('./s3.ts')
  return openBucket(new URL(storageUrl), maxUploadBytes)
}
