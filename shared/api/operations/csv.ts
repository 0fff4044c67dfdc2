/** `Type/$csv`: a search as a table. */
import { badRequest } from '../../errors.ts'
import { columnOf, csvLine } from '../../fhir/csv.ts'
import { parseJson } from '../../fhir/json.ts'
import type { Resource } from '../../fhir/resource.ts'
import { present } from '../../store/rows.ts'
import { parsed } from '../criteria.ts'
import { readPreferences } from '../negotiate.ts'
import type { Operation } from '../operation.ts'
import { withCodes } from '../search-codes.ts'

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
    const { services, principal, request, type = '' } = call
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
    const search = await withCodes(call, parsed(call, type, query, handling))
    let left = rowsOf(request.query.get('_count'))
    let { cursor, offset } = search
    const lines = [BYTE_ORDER_MARK, csvLine(fields)]
    while (left > 0) {
      const count = Math.min(left, PAGE)
      const page = await services.repository.search(principal, { ...search, count, cursor, offset })
      for (const version of page.versions) {
        // A stored version is a resource.
        const resource = parseJson(present(version, principal, false)) as Resource
        lines.push(csvLine(columns.map((column) => column(resource))))
      }
      left -= page.versions.length
      if (page.next === undefined) break
      cursor = page.next
      offset = 0
    }
    return {
      status: 200,
      headers: {
        'Content-Type': 'text/csv; charset=utf-8',
        'Content-Disposition': 'attachment; filename=export.csv',
      },
      body: lines.join(''),
    }
  },
}

function rowsOf(text: string | null): number {
  if (text === null || text === '') return DEFAULT_ROWS
  if (!/^\d{1,9}$/.test(text)) throw badRequest(`Invalid _count: ${text}`)
  return Math.min(Number(text), MOST_ROWS)
}
