/** Exports as a bench's client goes about them. */
import { setTimeout as delay } from 'node:timers/promises'
import type { Stage } from './stage.ts'

/** More frequent polls are answered 429. */
const POLL_MS = 100
export const MIB = 1024 * 1024

export interface Run {
  readonly rows: number
  readonly bytes: number
  readonly seconds: number
  readonly mibPerSecond: number
}

export const ask = (baseUrl: string, token: string, url: string, init: RequestInit = {}) =>
  fetch(new URL(url, `${baseUrl}fhir/R4/`), {
    ...init,
    headers: { Authorization: `Bearer ${token}`, ...Object(init.headers) },
  })

interface Manifest {
  readonly output: readonly { readonly url: string; readonly count: number }[]
}

interface Done extends Manifest {
  readonly id: string
}

export async function manifestOf(baseUrl: string, token: string, path: string): Promise<Done> {
  const accepted = await ask(baseUrl, token, path)
  const status = accepted.headers.get('content-location') ?? ''
  for (;;) {
    const answer = await ask(baseUrl, token, status)
    if (answer.status === 200) {
      const manifest = (await answer.json()) as Manifest
      return { ...manifest, id: status.slice(status.lastIndexOf('/') + 1) }
    }
    if (answer.status === 429) await delay(1000)
    else if (answer.status !== 202) throw new Error(`The export answered ${answer.status}`)
    await delay(POLL_MS)
  }
}

/** From the kick-off until it was complete, as its row tells: who polls learns of it later. */
export async function exported(
  { services }: Stage,
  baseUrl: string,
  token: string,
  path: string,
): Promise<Run> {
  const { output, id } = await manifestOf(baseUrl, token, path)
  const [job] = await services.database.query<{ seconds: number; bytes: number }>({
    text: `select extract(epoch from finished - requested)::float8 as seconds,
        (select sum(bytes)::float8 from export_file where job = id and kind = 'output') as bytes
      from export_job where id = $1`,
    values: [id],
  })
  if (job === undefined) throw new Error('The export is not there any more')
  const rows = output.reduce((sum, { count }) => sum + count, 0)
  return { rows, ...job, mibPerSecond: job.bytes / MIB / job.seconds }
}
