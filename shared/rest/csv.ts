/** `Type/$csv`: a search as a table. */
import { Readable } from 'node:stream'
import { badRequest } from '../errors.ts'
import { parseJson } from '../fhir/json.ts'
import type { Resource } from '../fhir/resource.ts'
import { ownTurn } from '../platform/event-loop-turns.ts'
import type { SearchRequest } from '../query/search-request.ts'
import { readPreferences } from '../request/negotiate.ts'
import type { Operation, OperationCall } from '../request/operation.ts'
import { present } from '../store/rows/rows.ts'
import { columnOf, csvLine } from './fhir-csv.ts'
import { parsed } from './search/criteria.ts'
import { resolved } from './search/rewrite.ts'

const DEFAULT_ROWS = 1000
const MOST_ROWS = 100_000
const PAGE = 1000
const MOST_FIELDS = 200
/** Tells spreadsheets that the text is UTF-8. */
const BYTE_ORDER_MARK = '\uFEFF'

export const csv: Operation = {
  name: 'csv',
  on: [{ level: 'type' }],
  methods: ['GET'],
  ownFormat: true,
  async run(call) {
    const { request, type = '' } = call
    if (type === 'Binary') throw badRequest('Cannot search on Binary resource type')
    const fields = (request.query.get('_fields') ?? '').split(',').filter((name) => name !== '')
    if (fields.length === 0) throw badRequest('Missing _fields parameter')
    if (fields.length > MOST_FIELDS) throw badRequest(`_fields may name ${MOST_FIELDS} fields`)
    const columns = fields.map((field) => columnOf(type, field))
    const query = new URLSearchParams(request.query)
    query.delete('_count')
    // The form is CSV whatever is accepted: a browser that follows a link names HTML.
    const headers = { ...request.headers, accept: undefined }
    const { handling } = readPreferences({ ...request, headers })
    const search = await resolved(call, parsed(call, type, query, handling))
    const table = pagesOf(call, search, rowsOf(request.query.get('_count')), columns)
    // A refusal is answered before the table begins.
    const first = await table.next()
    const head = `${BYTE_ORDER_MARK}${csvLine(fields)}`
    const start = first.done ? head : `${head}${first.value.text}`
    const isWhole = first.done || !first.value.hasNext
    return {
      status: 200,
      headers: {
        'Content-Type': 'text/csv; charset=utf-8',
        'Content-Disposition': 'attachment; filename=export.csv',
      },
      ...(isWhole
        ? { body: start }
        : { body: undefined, open: async () => Readable.from(chunksOf(start, table)) }),
    }
  },
}

interface TablePage {
  readonly text: string
  readonly hasNext: boolean
}

/** A page of rows at a time, so that a large table is nowhere as a whole. */
async function* pagesOf(
  { services, principal }: OperationCall,
  search: SearchRequest,
  rows: number,
  columns: readonly ((resource: Resource) => string)[],
): AsyncGenerator<TablePage, undefined> {
  let { cursor, offset } = search
  for (let left = rows; left > 0; ) {
    const count = Math.min(left, PAGE)
    const page = await services.repository.search(principal, { ...search, count, cursor, offset })
    left -= page.versions.length
    const lines: string[] = []
    for (const version of page.versions) {
      // A stored version is a resource.
      const resource = parseJson(present(version, principal, false)) as Resource
      lines.push(csvLine(columns.map((column) => column(resource))))
      await ownTurn()
    }
    const hasNext = page.next !== undefined && left > 0
    yield { text: lines.join(''), hasNext }
    if (!hasNext) return
    cursor = page.next
    offset = 0
  }
}

async function* chunksOf(start: string, rest: AsyncIterable<TablePage>): AsyncGenerator<Buffer> {
  yield Buffer.from(start)
  for await (const { text } of rest) yield Buffer.from(text)
}

function rowsOf(text: string | null): number {
  if (text === null || text === '') return DEFAULT_ROWS
  if (!/^\d{1,9}$/.test(text)) throw badRequest(`Invalid _count: ${text}`)
  return Math.min(Number(text), MOST_ROWS)
}
