/** What the operations on terminology have in common: both levels of their types, GET and POST, named inputs. */

import type { Operation, OperationCall } from '../request/operation.ts'
import { type Inputs, type ParameterDefinition, readInputs } from '../request/parameters.ts'
import type { FhirReply } from '../request/request.ts'
import { openTerminology, type Terminology } from './find.ts'

interface TerminologyCall {
  readonly call: OperationCall
  readonly inputs: Inputs
  readonly terminology: Terminology
}

/** Defined by the standard for each of `types`. */
export function terminologyOperation(
  name: string,
  types: readonly string[],
  parameters: (type: string) => readonly ParameterDefinition[],
  answer: (asked: TerminologyCall) => Promise<FhirReply>,
): Operation {
  return {
    name,
    on: types.flatMap((type) => [
      { type, level: 'type' },
      { type, level: 'instance' },
    ]),
    standard: 'type',
    methods: ['GET', 'POST'],
    run(call) {
      const inputs = readInputs(call, parameters(call.type ?? ''))
      const terminology = openTerminology(call.services, call.principal)
      return answer({ call, inputs, terminology })
    },
  }
}

export function texts(...names: readonly string[]): readonly ParameterDefinition[] {
  return names.map((name) => ({ name, kind: 'text' }))
}
