/** Converts OperationDefinitions to the names of their inputs. */
import type { OperationLine } from '../../shared/fhir/definitions-data.ts'
import type { Definition, Parameter } from './describe.ts'

/** Sorted by type and code, `ValueSet/expand`. */
export function describeOperations(published: readonly Definition[]): readonly OperationLine[] {
  const lines = published
    .filter(({ resourceType }) => resourceType === 'OperationDefinition')
    .flatMap(({ code, resource, parameter = [] }) =>
      // A list of codes here; CompartmentDefinitions have objects.
      (resource as unknown as readonly string[]).map((type) => ({
        name: `${type}/${code}`,
        parameters: parameter
          .filter(({ use }) => use === 'in')
          .flatMap((one) => listParameterPaths(one)),
      })),
    )
  return lines.sort((a, b) => (a.name < b.name ? -1 : 1))
}

function listParameterPaths({ name, part = [] }: Parameter, above = ''): readonly string[] {
  const path = `${above}${name}`
  return [path, ...part.flatMap((one) => listParameterPaths(one, `${path}.`))]
}
