/** Prints failed runs and requests at the terminal of `npm start`, a line each. */
import { openSync, readSync } from 'node:fs'
import { StringDecoder } from 'node:string_decoder'

const LOOK_MS = 250
const FAILURE = /"msg":"A bot run failed"|"status":5\d\d,.*"msg":"request"/

interface Line {
  readonly msg: string
  readonly method: string
  readonly route: string
  readonly status: number
  readonly ms: number
  readonly requestId: string
  readonly project?: string
  readonly bot?: string
  readonly failure?: string
  readonly runId?: string
}

/** Follows a log file from its beginning until the process ends, without keeping it alive. */
export function followFailures(file: string, print: (line: string) => void): void {
  const descriptor = openSync(file, 'r')
  const decoder = new StringDecoder()
  const buffer = Buffer.alloc(65_536)
  let rest = ''
  const look = () => {
    for (;;) {
      const size = readSync(descriptor, buffer)
      if (size === 0) return
      const lines = (rest + decoder.write(buffer.subarray(0, size))).split('\n')
      rest = lines.pop() ?? ''
      for (const line of lines) if (FAILURE.test(line)) print(formatFailureLine(JSON.parse(line)))
    }
  }
  setInterval(look, LOOK_MS).unref()
}

function formatFailureLine({ msg, method, route, status, ms, ...ids }: Line): string {
  const { requestId, project = 'none', bot, failure, runId } = ids
  return msg === 'request'
    ? `${method} ${route} answered ${status} after ${ms} ms (request ${requestId}, project ${project})`
    : `Bot ${bot} failed, ${failure}, after ${ms} ms (run ${runId}, project ${project})`
}
