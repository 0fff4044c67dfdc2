/** Records the fetches of a run whose input is kept, and answers those of a dry run from the record. */
import { createHash } from 'node:crypto'
import type { RecordedFetch } from '../../shared/bots/run-records.ts'
import type { FetchedPieces, OutboundRequest } from '../../shared/outbound/fetch-outside.ts'

/** Responses of a run beyond this size are not kept. */
const MOST_BYTES = 1024 * 1024

export interface FetchRecorder {
  /** Sends a request by `send`, and keeps its response as far as the bot reads it. */
  record(asked: OutboundRequest, send: () => Promise<FetchedPieces>): Promise<FetchedPieces>
  readonly fetches: readonly RecordedFetch[]
}

export function createFetchRecorder(): FetchRecorder {
  const recorded: (() => RecordedFetch)[] = []
  let bytes = 0

  async function* keep(body: AsyncGenerator<Buffer>, kept: Kept): AsyncGenerator<Buffer> {
    for await (const chunk of body) {
      kept.isWhole &&= bytes + chunk.length <= MOST_BYTES
      if (kept.isWhole) {
        bytes += chunk.length
        kept.chunks.push(chunk)
      }
      yield chunk
    }
    kept.isRead = true
  }

  return {
    async record(asked, send) {
      const request = toRequest(asked)
      try {
        const { body, ...head } = await send()
        const kept: Kept = { isWhole: true, isRead: false, chunks: [] }
        recorded.push(() => {
          if (!kept.isWhole) return request
          const read = Buffer.concat(kept.chunks).toString('base64')
          const isPartial = !kept.isRead
          return { ...request, response: { ...head, body: read, ...(isPartial && { isPartial }) } }
        })
        return { ...head, body: keep(body, kept) }
      } catch (error) {
        recorded.push(() => ({ ...request, error: (error as Error).message }))
        throw error
      }
    },
    get fetches() {
      return recorded.map((one) => one())
    },
  }
}

interface Kept {
  isWhole: boolean
  /** The bot has read it to its end. */
  isRead: boolean
  readonly chunks: Buffer[]
}

/** Sends nothing. `note` gets the requests that are not answered as they were. */
export function createFetchPlayer(
  recorded: readonly RecordedFetch[],
  note: (text: string) => void,
): FetchRecorder {
  const left = [...recorded]
  return {
    fetches: [],
    async record(asked) {
      const { method, url, sent } = toRequest(asked)
      const alike = left.filter((one) => one.method === method && one.url === url)
      const found = alike.find((one) => one.sent === sent) ?? alike[0]
      const place = `${method} ${withoutQuery(url)}`
      if (found === undefined) {
        note(`${place}: not sent, as the past run has not sent it`)
        throw new Error('A dry run sends only the requests that the past run has sent')
      }
      left.splice(left.indexOf(found), 1)
      if (found.error !== undefined) throw new Error(found.error)
      if (found.response === undefined) {
        note(`${place}: not sent, as the response of the past run was too large to be kept`)
        throw new Error('The response of the past run was too large to be kept')
      }
      if (found.sent !== sent)
        note(`${place}: has another body, and the response to the former one`)
      const { body, isPartial, ...head } = found.response
      if (isPartial) note(`${place}: the past run has not read the whole response`)
      return { ...head, body: once(Buffer.from(body, 'base64')) }
    },
  }
}

async function* once(bytes: Buffer): AsyncGenerator<Buffer> {
  if (bytes.length > 0) yield bytes
}

function toRequest({ method, url, body }: OutboundRequest) {
  const sent = createHash('sha256')
    .update(body ?? '')
    .digest('base64')
  return { method, url, sent }
}

/** Drops the query and the user info, which may hold keys. */
export function withoutQuery(url: string): string {
  const { origin, pathname } = URL.parse(url) ?? { origin: '', pathname: '' }
  return origin + pathname
}
