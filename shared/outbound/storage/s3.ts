/** Storage in a bucket, with multipart uploads. Credentials come from the AWS SDK's chain (`AWS_*`). */
import { IncomingMessage } from 'node:http'
import { Readable } from 'node:stream'
import {
  AbortMultipartUploadCommand,
  type CompletedPart,
  CompleteMultipartUploadCommand,
  CreateMultipartUploadCommand,
  DeleteObjectCommand,
  GetObjectCommand,
  HeadBucketCommand,
  ListMultipartUploadsCommand,
  type ListMultipartUploadsCommandInput,
  type ListMultipartUploadsCommandOutput,
  NoSuchKey,
  PutObjectCommand,
  type PutObjectCommandInput,
  S3Client,
  UploadPartCommand,
} from '@aws-sdk/client-s3'
import { getSignedUrl } from '@aws-sdk/s3-request-presigner'
import { contentMissing, unavailable } from '../../core/errors.ts'
import type { ContentHeaders, Storage } from './storage.ts'
import { release } from './storage.ts'

/** S3's minimum part size. */
const PART_BYTES = 5 * 1024 * 1024
/** S3's maximum number of parts. */
const MAX_PARTS = 10_000

/** Enough for one part at 1 Mbit/s. */
const TIMEOUT_SECONDS = 60
const CONNECT_MS = 5000

export function openBucket(url: URL, maxBytes: number): Storage {
  const bucket = url.hostname
  const prefix = url.pathname.replace(/^\/+|\/+$/g, '')
  const { searchParams } = url
  const endpoint = searchParams.get('endpoint')
  const seconds = Number(searchParams.get('timeout') ?? TIMEOUT_SECONDS)
  const client = new S3Client({
    region: searchParams.get('region') ?? 'us-east-1',
    forcePathStyle: searchParams.get('forcePathStyle') === 'true',
    ...(endpoint === null ? {} : { endpoint }),
    requestHandler: {
      connectionTimeout: CONNECT_MS,
      requestTimeout: seconds * 1000,
      throwOnRequestTimeout: true,
    },
  })
  const encryption = parseEncryption(searchParams)
  const partBytes = Math.max(PART_BYTES, Math.ceil(maxBytes / MAX_PARTS))
  const object = (key: string) => ({
    Bucket: bucket,
    Key: prefix === '' ? key : `${prefix}/${key}`,
  })
  const sign = (key: string, seconds: number, headers: ContentHeaders) => {
    const answer = {
      ResponseContentType: headers['Content-Type'],
      ResponseContentDisposition: headers['Content-Disposition'],
    }
    const command = new GetObjectCommand({ ...object(key), ...answer })
    return getSignedUrl(client, command, { expiresIn: seconds })
  }
  return {
    ...(searchParams.get('presigned') === 'true' ? { sign } : {}),
    put: (key, source) => uploadObject(client, object(key), source, { partBytes, encryption }),
    async get(key, range) {
      const Range = range && `bytes=${range.start}-${range.end}`
      const command = new GetObjectCommand({ ...object(key), ...(Range && { Range }) })
      const { Body } = await client.send(command).catch((error: unknown) => {
        throw error instanceof NoSuchKey ? contentMissing(error) : unavailable('The storage', error)
      })
      if (!(Body instanceof Readable)) throw new Error('The bucket gave no stream')
      if (Body instanceof IncomingMessage) releaseReads(Body)
      return Body
    },
    async delete(key) {
      await client.send(new DeleteObjectCommand(object(key)))
    },
    removeAbandoned: (before) =>
      abortUploads(client, { Bucket: bucket, Prefix: prefix && `${prefix}/` }, before),
    async check() {
      await client.send(new HeadBucketCommand({ Bucket: bucket }))
    },
    async close() {
      client.destroy()
    },
  }
}

/** The encryption to request, where the bucket's own settings do not. */
function parseEncryption(searchParams: URLSearchParams): Encryption {
  const [sse, key] = ['sse', 'sseKmsKeyId'].map((name) => searchParams.get(name) ?? undefined)
  return { ServerSideEncryption: sse as Encryption['ServerSideEncryption'], SSEKMSKeyId: key }
}

/** Releases read buffers after Node's own listener has copied them; otherwise they stay until garbage collection. */
function releaseReads(answer: IncomingMessage): void {
  const { socket } = answer
  const stop = () => socket.off('data', release)
  socket.on('data', release)
  // The next answer on this connection adds its own listener.
  answer.once('end', stop)
  answer.once('close', stop)
}

// Multipart upload through a few reused blocks, so memory use does not depend on the size.

/** https://docs.aws.amazon.com/AmazonS3/latest/userguide/serv-side-encryption.html */
type Encryption = Pick<PutObjectCommandInput, 'ServerSideEncryption' | 'SSEKMSKeyId'>

/** One more block fills meanwhile. */
const PARTS_IN_FLIGHT = 2

/** Leaves nothing in the bucket on failure. Throws the errors of `source`. */
async function uploadObject(
  client: S3Client,
  object: { readonly Bucket: string; readonly Key: string },
  source: AsyncIterable<Uint8Array>,
  { partBytes, encryption }: { readonly partBytes: number; readonly encryption: Encryption },
): Promise<void> {
  const stored = { ...object, ...encryption }
  const blocks = createBlocks(partBytes)
  const parts: Promise<CompletedPart>[] = []
  let UploadId: string | undefined
  const sendPart = async (block: Buffer, size: number, PartNumber: number) => {
    const Body = block.subarray(0, size)
    const { ETag } = await client.send(
      new UploadPartCommand({ ...object, UploadId, PartNumber, Body }),
    )
    blocks.giveBack(block)
    return { ETag, PartNumber }
  }
  try {
    for await (const { block, size } of filled(source, blocks.take)) {
      if (UploadId === undefined && size < partBytes) {
        await client.send(new PutObjectCommand({ ...stored, Body: block.subarray(0, size) }))
        blocks.giveBack(block)
        blocks.drop()
        return
      }
      UploadId ??= (await client.send(new CreateMultipartUploadCommand(stored))).UploadId
      if (size === 0) {
        blocks.giveBack(block)
        break
      }
      const part = sendPart(block, size, parts.length + 1)
      // The failure rejects every wait for a block or for all parts.
      part.catch(blocks.fail)
      parts.push(part)
    }
    const MultipartUpload = { Parts: await Promise.all(parts) }
    await client.send(new CompleteMultipartUploadCommand({ ...object, UploadId, MultipartUpload }))
    blocks.drop()
  } catch (error) {
    await Promise.allSettled(parts)
    // The caller gets the original error, whether or not the abort succeeds.
    const abort = new AbortMultipartUploadCommand({ ...object, UploadId })
    if (UploadId !== undefined) await client.send(abort).catch(() => undefined)
    throw error
  }
}

/** Aborts uploads that began before a time: abandoned parts cost money. */
async function abortUploads(
  client: S3Client,
  place: { readonly Bucket: string; readonly Prefix: string },
  before: Date,
): Promise<void> {
  const { Bucket } = place
  let next: Pick<ListMultipartUploadsCommandInput, 'KeyMarker' | 'UploadIdMarker'> | undefined = {}
  while (next !== undefined) {
    const page: ListMultipartUploadsCommandOutput = await client.send(
      new ListMultipartUploadsCommand({ ...place, ...next }),
    )
    for (const { Key, UploadId, Initiated } of page.Uploads ?? []) {
      if (Initiated === undefined || Initiated >= before) continue
      await client.send(new AbortMultipartUploadCommand({ Bucket, Key, UploadId }))
    }
    const { IsTruncated, NextKeyMarker: KeyMarker, NextUploadIdMarker: UploadIdMarker } = page
    next = IsTruncated && KeyMarker !== undefined ? { KeyMarker, UploadIdMarker } : undefined
  }
}

/** Yields full blocks and a last, possibly empty, partial one. */
async function* filled(
  source: AsyncIterable<Uint8Array>,
  take: () => Promise<Buffer>,
): AsyncGenerator<{ readonly block: Buffer; readonly size: number }> {
  let block = await take()
  let size = 0
  for await (const chunk of source) {
    for (let from = 0; from < chunk.length; ) {
      const more = Math.min(chunk.length - from, block.length - size)
      block.set(chunk.subarray(from, from + more), size)
      size += more
      from += more
      if (size < block.length) continue
      yield { block, size }
      block = await take()
      size = 0
    }
    release(chunk)
  }
  yield { block, size }
}

function createBlocks(bytes: number) {
  const free: Buffer[] = []
  let made = 0
  let waiting: PromiseWithResolvers<Buffer> | undefined
  let failure: { readonly reason: unknown } | undefined
  return {
    async take(): Promise<Buffer> {
      if (failure !== undefined) throw failure.reason
      const block = free.pop()
      if (block !== undefined) return block
      if (made <= PARTS_IN_FLIGHT) {
        made += 1
        return Buffer.allocUnsafeSlow(bytes)
      }
      waiting = Promise.withResolvers<Buffer>()
      return waiting.promise
    },
    giveBack(block: Buffer): void {
      if (waiting === undefined) free.push(block)
      else waiting.resolve(block)
      waiting = undefined
    },
    /** Releases the block after all answers: the connection may still read a failed part. */
    drop(): void {
      for (const block of free.splice(0)) release(block)
    },
    fail(reason: unknown): void {
      failure ??= { reason }
      waiting?.reject(reason)
      waiting = undefined
    },
  }
}
