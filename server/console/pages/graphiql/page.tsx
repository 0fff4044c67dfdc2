/** GraphiQL with the rights of the person who is signed in. */
import type { FetcherParams } from '@graphiql/toolkit'
import { Box, useComputedColorScheme } from '@mantine/core'
import { useDocumentTitle } from '@mantine/hooks'
import { GraphiQL } from 'graphiql'
import style from 'graphiql/style.css'
import { useEffect } from 'react'
import { medplum } from '../../session.ts'
import { texts } from '../../texts/texts.ts'

const FIRST = `{
  PatientList(_count: 5) {
    id
    name {
      family
      given
    }
  }
}
`

const sheet = new CSSStyleSheet()
sheet.replaceSync(style)

export function Page() {
  useDocumentTitle(`${texts.graphiql.title} – ${document.body.dataset.product}`)
  useEffect(() => {
    document.adoptedStyleSheets.push(sheet)
    return () => {
      document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet)
    }
  }, [])
  const scheme = useComputedColorScheme('light')
  return (
    <Box h="calc(100dvh - 88px)">
      <GraphiQL
        fetcher={({ query, operationName, variables }: FetcherParams) =>
          medplum.graphql(query, operationName, variables)
        }
        // Queries may name patients: they are forgotten with the tab.
        storage={sessionStorage}
        defaultQuery={FIRST}
        forcedTheme={scheme}
      />
    </Box>
  )
}
