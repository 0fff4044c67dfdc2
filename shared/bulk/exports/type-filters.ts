/** `_typeFilter`: a search of one type each. https://hl7.org/fhir/uv/bulkdata/STU2/export.html#_typefilter-query-parameter */

import type { Principal } from '../../access/principal.ts'
import { HttpError } from '../../errors.ts'
import { isResourceType } from '../../fhir/definitions.ts'
import { readQuery } from '../../request/negotiate.ts'
import { withCodes } from '../../rest/search/codes.ts'
import { parsed } from '../../rest/search/criteria.ts'
import type { Services } from '../../services.ts'
import { type Fault, fault } from './faults.ts'
import { createExports } from './rows/exports.ts'
import type { ExportLevel, TypeFilter } from './rows/jobs.ts'
import { fits, isExportable } from './rows/scope.ts'

export interface ReadFilters {
  readonly filters: readonly TypeFilter[]
  readonly faults: readonly Fault[]
}

const NAME = '_typeFilter'
/** Of a search, they shape its answer, not what is found. */
const RESULT =
  /^_(sort|count|include|revinclude|summary|total|elements|contained|containedType|offset|cursor|score|explain|fields|format|pretty|deleted)(:|$)/

/** Errors: 403 for a type, or a parameter of it, that the member may not search by. */
export async function readTypeFilters(
  asking: { readonly services: Services; readonly principal: Principal },
  texts: readonly string[],
  level: ExportLevel,
  types: readonly string[] | undefined,
): Promise<ReadFilters> {
  const filters: TypeFilter[] = []
  const faults: Fault[] = []
  for (const text of texts) {
    const found = await readFilter(asking, text, level, types)
    if ('isFatal' in found) faults.push(found)
    else filters.push(found)
  }
  return { filters, faults }
}

async function readFilter(
  asking: { readonly services: Services; readonly principal: Principal },
  text: string,
  level: ExportLevel,
  types: readonly string[] | undefined,
): Promise<TypeFilter | Fault> {
  const { services, principal } = asking
  const at = text.indexOf('?')
  const type = at === -1 ? text : text.slice(0, at)
  const said = type.slice(0, 64)
  if (at < 1) return fault('invalid', `A filter is Type?query, not ${text.slice(0, 64)}`, NAME)
  if (!isResourceType(type)) return fault('invalid', `Unknown type ${said}`, NAME)
  if (!isExportable(principal, type)) return fault('not-supported', `${type} is not exported`, NAME)
  if (types !== undefined && !types.includes(type)) {
    return fault('invalid', `${type} is filtered but is not in _type`, NAME)
  }
  if (!fits(level, type)) {
    return fault('invalid', `${type} is filtered but is not in the compartment of a patient`, NAME)
  }
  try {
    const query = readQuery(text.slice(at + 1))
    const result = [...query.keys()].find((name) => RESULT.test(name))
    if (result !== undefined) {
      return fault('not-supported', `${result.slice(0, 64)} is no filter`, NAME)
    }
    const request = await withCodes(asking, parsed(asking, type, query, 'strict'))
    const filter = { type, conditions: request.conditions }
    await services.repository.feature(createExports).check(principal, filter)
    return filter
  } catch (error) {
    if (!(error instanceof HttpError) || error.status !== 400) throw error
    return fault('invalid', `${type}: ${error.message}`, NAME)
  }
}
